//! The filter of system calls, attacked with other filters, tracers and other sets of numbers.

use cabana_sandbox::Status;

use crate::{
    attacks::{FILTER, OTHER_ABI, OWN_FILTERS, Report},
    inside::Inside,
};

#[tokio::test]
async fn a_filter_of_ones_own_that_allows_everything() {
    assert_eq!(FILTER.run_on_host(&["allow"]).report().of("the call after it"), "done");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let report = inside.attack(user, &FILTER, &["allow"]).await.report();
        assert_eq!(report.of("a filter that allows"), "done", "programs may have filters of their own");
        assert_eq!(report.of("the call after it"), "EPERM");
        assert_eq!(report.of("filters off"), "EINVAL");
        assert_eq!(report.of("the call in the end"), "EPERM");
    }
    inside.end().await;
}

#[tokio::test]
async fn a_supervisor_of_ones_own_that_says_go_on() {
    assert_eq!(FILTER.run_on_host(&["notify"]).report().of("the call that it lets go on"), "done");
    let inside = Inside::new().await;
    let report = inside.attack("root", &FILTER, &["notify"]).await.report();
    // The kernel has room for one, and it is init.
    assert_eq!(report.of("a supervisor"), "EBUSY");
    assert_eq!(report.of("the call that it lets go on"), "EPERM");
    inside.end().await;
}

/// The kernel compiles them into memory that the whole machine has so much of (net.core.bpf_jit_limit), and charges it to nobody. Who
/// takes all of it keeps the filter of the next sandbox from being made.
#[tokio::test]
async fn filters_of_very_many_processes() {
    const MANY: usize = 330;
    let ways = ["processes", "processes by prctl", "children of theirs", "processes without a first thread", "threads"];
    let count = |report: &Report, way| report.of(way).parse::<usize>().expect("a number");
    let control = OWN_FILTERS.run_on_host(&[&MANY.to_string()]).report();
    assert!(ways.iter().all(|way| count(&control, way) == MANY), "{control:?}");
    for user in ["root", "user"] {
        let inside = Inside::new().await;
        let report = inside.attack(user, &OWN_FILTERS, &[&MANY.to_string()]).await.report();
        // Some more than there may be: those that are asked for at once are counted at once.
        assert!(ways.iter().all(|way| count(&report, way) < 300), "{report:?}");
        assert!(count(&report, "processes") > 200, "more than any program has: {report:?}");
        assert_eq!(count(&report, "threads"), 0, "the first ones are taken, and nobody could count these");
        assert_eq!(report.of("one afterwards"), "done");
        assert_eq!(report.of("one for all threads"), "done");
        inside.end().await;
    }
}

#[cfg(target_arch = "x86_64")]
#[tokio::test]
async fn a_tracer_that_changes_the_call_after_it_was_made() {
    assert_eq!(FILTER.run_on_host(&["rewrite"]).report().of("a call that a tracer changed"), "done");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let report = inside.attack(user, &FILTER, &["rewrite"]).await.report();
        assert_eq!(report.of("a call that a tracer changed"), "EPERM");
    }
    inside.end().await;
}

#[tokio::test]
async fn a_tracer_that_suspends_or_reads_the_filter() {
    let control = FILTER.run_on_host(&["checkpoint"]).report();
    assert_ne!(control.of("a tracer that reads the filter"), "EACCES", "the host's root may ask: {control:?}");
    let inside = Inside::new().await;
    let report = inside.attack("root", &FILTER, &["checkpoint"]).await.report();
    report.all_refused(&["EPERM", "EACCES"]);
    inside.end().await;
}

#[cfg(target_arch = "x86_64")]
mod other_numbers {
    use super::*;

    /// Killed for a bad system call, and not merely answered.
    async fn killed(ways: &[&str]) {
        const SIGSYS: i32 = 31;
        let inside = Inside::new().await;
        assert!(inside.attack("user", &OTHER_ABI, &["native"]).await.ok().starts_with("native "));
        for way in ways {
            assert_ne!(OTHER_ABI.run_on_host(&[way]).status, Status::Signal(SIGSYS), "nobody ends it on the host");
            let ran = inside.attack("root", &OTHER_ABI, &[way]).await;
            assert_eq!((ran.status, ran.out.as_str()), (Status::Signal(SIGSYS), ""), "{way}");
        }
        inside.end().await;
    }

    #[tokio::test]
    async fn calls_of_32_bit_programs() {
        killed(&["int80", "int80-mount"]).await;
    }

    #[tokio::test]
    async fn calls_of_x32_programs() {
        killed(&["x32", "x32-unshare"]).await;
    }
}
