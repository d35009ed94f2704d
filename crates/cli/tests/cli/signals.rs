//! Signals that we get go to the command, and nothing outlives us.

use std::{fs, process::Command};

use crate::kit::{Ends, Running, Signal, binary, data, lives, mark, sh, wait_until};

#[test]
fn each_signal_reaches_the_command() {
    for (signal, name) in [
        (Signal::INT, "INT"),
        (Signal::TERM, "TERM"),
        (Signal::HUP, "HUP"),
        (Signal::QUIT, "QUIT"),
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
    ] {
        let script = format!("trap 'echo got {name}; exit 3' {name}; echo ready; while :; do sleep 0.05; done");
        let running = Running::ready(sh(&script));
        running.signal(signal);
        let ended = running.ends();
        assert_eq!((ended.code, ended.stdout), (3, format!("got {name}\n")), "{name}");
    }
}

#[test]
fn a_command_that_minds_no_signal_dies_of_it() {
    for (signal, code) in [(Signal::TERM, 128 + 15), (Signal::INT, 128 + 2), (Signal::HUP, 128 + 1)] {
        let running = Running::ready(sh("echo ready; exec sleep 1000"));
        running.signal(signal);
        assert_eq!(running.ends().code, code);
    }
}

#[test]
fn who_insists_is_obeyed() {
    let mark = mark();
    let mut running = Running::ready(sh(&format!("trap '' INT TERM; echo ready; sleep {mark}; sleep {mark}")));
    wait_until("it has ended", || {
        // Two that come at once are one.
        running.signal(Signal::INT);
        std::thread::sleep(std::time::Duration::from_millis(200));
        running.child.try_wait().unwrap().is_some()
    });
    assert_eq!(running.ends().code, 128 + 9);
    wait_until("nothing of it is left", || !lives(&mark));
}

#[test]
fn what_was_ignored_stays_ignored() {
    let script = "trap 'echo got HUP' HUP; trap 'echo got TERM; exit 4' TERM; echo ready; while :; do sleep 0.05; done";
    let line = format!("trap '' HUP; exec {} run -- sh -c \"$0\"", binary());
    let mut command = Command::new("sh");
    command.args(["-c", &line, script]).env("CABANA_DATA", data());
    let running = Running::ready(command);
    running.signal(Signal::HUP);
    running.signal(Signal::TERM);
    let ended = running.ends();
    assert_eq!((ended.code, ended.stdout.as_str()), (4, "got TERM\n"));
}

#[test]
fn a_sandbox_ends_with_us_also_by_kill_9() {
    let mark = mark();
    let script = format!("setsid sleep {mark} & setsid sh -c 'sleep {mark} & wait' & echo ready; sleep {mark}");
    let running = Running::ready(sh(&script));
    wait_until("it runs", || lives(&mark));
    running.signal(Signal::KILL);
    wait_until("nothing of it is left", || !lives(&mark));
}

#[test]
fn what_a_killed_one_left_on_disk_goes_with_the_next() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let mut command = sh("echo data > /workspace/file; echo ready; sleep 1000");
    command.env("CABANA_DATA", &data);
    let running = Running::ready(command);
    running.signal(Signal::KILL);
    running.ends();
    sh("true").env("CABANA_DATA", &data).ends().well();
    assert_eq!(fs::read_dir(data.join("sandboxes")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(data.join("ephemeral")).map_or(0, Iterator::count), 0);
}
