//! Memory that no process holds: in queues and segments of the kernel.

use cabana_sandbox::{ExecSpec, Limits, SandboxPath, SandboxSpec, Status};

use crate::{
    attacks::{QUEUES, Ran},
    inside::{Inside, passing, until},
};

const LIMIT_MIB: u64 = 128;

async fn limited() -> Inside {
    let limits = Limits { memory: Some(LIMIT_MIB << 20), ..Limits::NONE };
    Inside::with(SandboxSpec { limits, ..passing() }).await
}

async fn fill(inside: &Inside, kind: &str, mib: u64) -> Ran {
    inside.attack("user", &QUEUES, &[kind, &mib.to_string(), "end"]).await
}

/// It is ended for it, or does not get rid of more than it may have.
async fn cannot_be_hidden_in(kind: &str) {
    let free = Inside::new().await;
    let control: u64 = fill(&free, kind, 2 * LIMIT_MIB).await.ok().parse().unwrap();
    assert!(control >= 2 * LIMIT_MIB, "without a limit there is room: {control}");
    free.end().await;
    let inside = limited().await;
    let ran = fill(&inside, kind, 2 * LIMIT_MIB).await;
    match ran.status {
        Status::OutOfMemory => {}
        _ => {
            let hidden: u64 = ran.ok().parse().unwrap();
            assert!(hidden <= LIMIT_MIB, "{hidden} MiB in {kind}");
        }
    }
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn hiding_memory_in_queues_of_tcp() {
    cannot_be_hidden_in("tcp").await;
}

#[tokio::test]
async fn hiding_memory_in_queues_of_udp() {
    cannot_be_hidden_in("udp").await;
}

#[tokio::test]
async fn hiding_memory_in_queues_of_unix_sockets() {
    cannot_be_hidden_in("unix").await;
}

#[tokio::test]
async fn hiding_memory_in_messages_of_system_v() {
    cannot_be_hidden_in("messages").await;
}

/// What stays without any process must leave room for a command that removes it.
#[tokio::test]
async fn filling_the_memory_with_segments_that_outlive_every_process() {
    let inside = limited().await;
    let held: u64 = fill(&inside, "shared", 2 * LIMIT_MIB).await.ok().parse().unwrap();
    assert!((16..=LIMIT_MIB / 2).contains(&held), "{held} MiB");
    inside.still_works().await;
    inside.user("ipcrm --all=shm").await.ok();
    let again: u64 = fill(&inside, "shared", 2 * LIMIT_MIB).await.ok().parse().unwrap();
    assert_eq!(again, held);
    inside.end().await;
}

/// Root inside chooses init as the first to go, and then uses up the memory. It is its own sandbox that it ends; the server
/// notices, and says so.
#[tokio::test]
async fn making_process_1_the_first_to_go_when_memory_runs_out() {
    let inside = limited().await;
    let script = "echo 1000 > /proc/1/oom_score_adj; cat /proc/1/oom_score_adj; \
        echo 0 > /proc/self/oom_score_adj; python3 -c 'x = bytearray(b\"x\" * (300 << 20))'";
    let mut spec = ExecSpec::shell(script, SandboxPath::root());
    spec.user = Some(crate::inside::named("root"));
    let ran = tokio::time::timeout(crate::inside::SOON, cabana_sandbox::run(&*inside.sandbox, spec, 1024)).await;
    let _whatever_it_was = ran.expect("an answer in time");
    until("the server knows how it is", async || {
        let spec = ExecSpec::argv(["true"], SandboxPath::root());
        match tokio::time::timeout(crate::inside::SOON, inside.sandbox.exec(spec)).await.expect("an answer in time") {
            Ok(_) => true,
            Err(error) => error.code().as_str() == "sandbox_gone",
        }
    })
    .await;
    let engine = inside.engine.clone();
    let other = Inside::of(engine.clone(), &passing()).await;
    other.still_works().await;
    cabana_sandbox::Provider::destroy(&*engine, other.sandbox.id()).await.unwrap();
    crate::inside::soon("its end", inside.end()).await;
}
