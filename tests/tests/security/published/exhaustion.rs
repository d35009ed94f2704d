//! What a guest can use up or leave behind in the server.

use std::{collections::BTreeMap, fs};

use cabana_sandbox::{ExecSpec, SandboxPath, Stdio, TermSize};

use crate::{
    exhaustion::beside_a_neighbour,
    inside::{Inside, path, until},
};

/// Descriptors and threads of this process, which is the server here.
fn held() -> (usize, usize) {
    let count = |dir: &str| fs::read_dir(dir).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// What the descriptors are, to tell what is left.
fn kinds() -> BTreeMap<String, usize> {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    let mut kinds = BTreeMap::new();
    for link in links {
        let kind = link.to_string_lossy().split([':', '[']).next().unwrap_or_default().to_owned();
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

/// CVE-2022-23471, CVE-2025-64329: each command with a terminal that did not start left something in the daemon.
#[tokio::test]
async fn failed_terminal_commands_leak_nothing_in_the_server() {
    let inside = Inside::new().await;
    let terminal = Stdio::Terminal(TermSize { cols: 80, rows: 24 });
    let failing = || ExecSpec { stdio: terminal, ..ExecSpec::argv(["/no/such/program"], SandboxPath::root()) };
    for _ in 0..20 {
        assert!(inside.sandbox.exec(failing()).await.is_err());
    }
    let (descriptors, threads) = held();
    for round in 0..150 {
        let spec = if round % 3 == 0 { ExecSpec { cwd: path("/no/such/place"), ..failing() } } else { failing() };
        assert!(inside.sandbox.exec(spec).await.is_err());
    }
    let now = held();
    assert!(now.0 <= descriptors + 8 && now.1 <= threads + 4, "{descriptors}, {threads}; then {now:?}: {:?}", kinds());
    until("no terminal is left inside", async || inside.root("ls /dev/pts").await.ok() == "ptmx").await;
    let running = ExecSpec { stdio: terminal, ..ExecSpec::argv(["/bin/sleep", "300"], SandboxPath::root()) };
    let process = inside.sandbox.exec(running).await.unwrap();
    assert!(held().0 > now.0 && inside.root("ls /dev/pts").await.ok() != "ptmx", "one that is open is counted");
    drop(process);
    inside.still_works().await;
    inside.end().await;
}

macro_rules! neighbour_survives {
    ($($name:ident: $kind:literal,)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            beside_a_neighbour($kind).await;
        })*
    };
}

neighbour_survives! {
    semaphores_of_a_neighbour_survive_exhaustion: "semaphores",
    message_queues_of_a_neighbour_survive_exhaustion: "queues",
    file_locks_of_a_neighbour_survive_exhaustion: "locks",
    epoll_watches_of_a_neighbour_survive_exhaustion: "epoll",
    queued_signals_of_a_neighbour_survive_exhaustion: "signals",
    threads_of_a_neighbour_survive_exhaustion: "threads",
    posix_timers_of_a_neighbour_survive_exhaustion: "clocks",
    memory_maps_of_a_neighbour_survive_exhaustion: "maps",
}
