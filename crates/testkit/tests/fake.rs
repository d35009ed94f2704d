//! The fake is sound, each broken one is caught, and each case catches one.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use cabana_sandbox::{Provider, SandboxSpec};
use cabana_testkit::{
    Fake, Fault,
    conformance::{Case, Needs, Subject, Verdict, cases, verdict},
};
use tokio::task::JoinSet;

struct InMemory(Fake);

impl Subject for InMemory {
    fn provider(&self) -> Arc<dyn Provider> {
        Arc::new(self.0.clone())
    }

    fn spec(&self) -> SandboxSpec {
        Fake::spec()
    }

    /// What it tells, it tells before the operation returns: only a broken one is waited for.
    fn patience(&self) -> Duration {
        Duration::from_millis(50)
    }
}

mod sound {
    cabana_testkit::conformance!(super::InMemory(super::Fake::new()));
}

/// Asked last, and only about a fault that no other case has caught: they take longer than all the others together.
const SLOW: [&str; 2] = ["eight_mebibytes_in_odd_chunks_round_trip", "list_of_five_thousand_entries_is_whole"];

/// The cases that fail on the broken fake.
async fn caught_by(fault: Fault) -> Vec<&'static str> {
    let mut caught = Vec::new();
    let (slow, quick): (Vec<_>, Vec<_>) = cases().iter().partition(|case| SLOW.contains(&case.name));
    for case in quick.into_iter().chain(slow) {
        if SLOW.contains(&case.name) && !caught.is_empty() {
            break;
        }
        if let Verdict::Failed(_) = verdict(case, Arc::new(InMemory(Fake::broken(fault)))).await {
            caught.push(case.name);
        }
    }
    caught
}

fn runs_on_the_fake(case: &Case) -> bool {
    case.needs.met_by(&Fake::new().capabilities())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_broken_fake_is_caught() {
    assert!(Fault::ALL.len() >= 40);
    let mut sharp = BTreeSet::new();
    let mut missed = Vec::new();
    let mut running: JoinSet<_> = Fault::ALL.iter().map(|fault| async { (*fault, caught_by(*fault).await) }).collect();
    while let Some(ended) = running.join_next().await {
        let (fault, names) = ended.unwrap();
        println!("{fault:?} is caught by {}", names.join(", "));
        if names.is_empty() {
            missed.push(fault);
        }
        // What breaks everything shows that everything uses it, not that a case looks at it.
        if names.len() < cases().len() / 5 {
            sharp.extend(names);
        }
    }
    assert!(missed.is_empty(), "no case catches {missed:?}");
    let run = cases().iter().filter(|case| runs_on_the_fake(case)).map(|case| case.name);
    let blunt: Vec<_> = run.filter(|name| !sharp.contains(name)).collect();
    assert!(blunt.is_empty(), "these cases catch no broken fake: {blunt:?}");
}

#[test]
fn cases_that_need_commands_are_not_run_without_them() {
    let skipped: Vec<_> = cases().iter().filter(|case| !runs_on_the_fake(case)).collect();
    assert!(skipped.len() >= 30, "{}", skipped.len());
    assert!(skipped.iter().all(|case| !matches!(case.needs, Needs::Nothing | Needs::TwoUsers)));
}

#[test]
fn no_two_cases_have_one_name() {
    let names: BTreeSet<_> = cases().iter().map(|case| case.name).collect();
    assert_eq!(names.len(), cases().len());
}
