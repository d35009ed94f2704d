//! Memory that the kernel takes for a sandbox and charges to nobody: for what it remembers of a listing, and for locks of files.

use std::fs;

use cabana_sandbox::{ExecSpec, Limits, SandboxPath, SandboxSpec, Status};

use crate::{
    attacks::UNCHARGED,
    inside::{Inside, living, marked, named, passing, rest, unique, until},
};

const MIB: u64 = 1 << 20;

/// A directory of the base in which a guest may write: a list of both is made of it.
const MERGED: &str = "/etc";

/// What all sandboxes may have of it together: a part of the machine's memory, within bounds.
fn bound() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    (kib * 1024 / 64).clamp(32 * MIB, 512 * MIB)
}

/// The attacker has no limit of its own, so that nothing else ends it.
async fn is_ended_for_taking(kind: &str) {
    let attacker = Inside::with(SandboxSpec { limits: Limits::NONE, ..passing() }).await;
    let neighbour = Inside::of(attacker.engine.clone(), &passing()).await;
    let mark = unique("stays");
    let words = ["sh", "-c", "exec 3</etc; while :; do ls /etc > /dev/null; sleep 0.1; done", &mark];
    neighbour.sandbox.exec(ExecSpec::argv(words, SandboxPath::root())).await.unwrap();
    until("its neighbour runs", async || !marked(&mark).is_empty()).await;

    let words = attacker.bring(&UNCHARGED).await;
    let mib = (4 * bound() / MIB).to_string();
    let words = words.into_iter().chain([kind, &mib, MERGED].map(str::to_owned));
    // The directory belongs to root inside.
    let spec = ExecSpec { user: Some(named("root")), ..ExecSpec::argv(words, SandboxPath::root()) };
    let attack = attacker.sandbox.exec(spec).await.unwrap();
    let (said, status) = rest(attack).await;
    assert_eq!((said.as_str(), status), ("", Status::OutOfMemory), "{kind}");
    // It may try again.
    attacker.still_works().await;
    neighbour.still_works().await;
    assert!(living(&mark) > 0, "what others have is not theirs to lose");
    attacker.end().await;
}

/// The control: nothing else counts it. It has several times as much as its memory limit.
async fn is_not_counted(kind: &str) {
    let limits = Limits { memory: Some((bound() / 8).max(40 * MIB)), ..Limits::NONE };
    let inside = Inside::with(SandboxSpec { limits, ..passing() }).await;
    let mib = (bound() / 2 / MIB).to_string();
    let _keeps = inside.start("root", &UNCHARGED, &[kind, &mib, MERGED]).await;
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn hiding_memory_in_lists_of_names() {
    is_not_counted("lists").await;
    is_ended_for_taking("lists").await;
}

/// Who looks at descriptors sees nothing of these, nor of the names.
#[tokio::test]
async fn hiding_memory_in_lists_that_are_in_queues_of_sockets() {
    is_ended_for_taking("queued").await;
}

#[tokio::test]
async fn hiding_memory_in_lists_of_threads_with_tables_of_their_own() {
    is_ended_for_taking("threads").await;
}

#[tokio::test]
async fn hiding_memory_in_locks() {
    is_not_counted("locks").await;
    is_ended_for_taking("locks").await;
}
