//! On a terminal the command has a terminal of its own. `script` gives us one here.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
};

use crate::kit::{Ended, Ends, binary, data, wait_until};

/// Runs a line of shell on a fresh terminal; `$CABANA` is the binary.
fn on_terminal(line: &str) -> Command {
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", line, "/dev/null"]);
    command.env("CABANA", binary()).env("CABANA_DATA", data()).env("TERM", "vt100").stdin(Stdio::null());
    command
}

#[test]
fn a_terminal_gets_a_terminal_of_its_own() {
    let ended =
        on_terminal("$CABANA run -- sh -c 'tty; test -t 0 && test -t 1 && test -t 2 && echo all three; echo $TERM'")
            .ends();
    let said = ended.well();
    assert!(said.contains("/dev/pts/"), "{said:?}");
    assert!(said.contains("all three\r\n") && said.contains("vt100\r\n"), "{said:?}");
}

#[test]
fn without_a_terminal_on_both_sides_there_is_none_inside() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("out");
    let line = format!(
        "$CABANA run -- sh -c 'test -t 0 || echo no input; test -t 1 || echo no output; cat' > {}",
        out.display()
    );
    on_terminal(&line).ends().well();
    assert_eq!(fs::read_to_string(out).unwrap(), "no input\nno output\n");
}

#[test]
fn exit_codes_pass_through_a_terminal_too() {
    assert_eq!(on_terminal("$CABANA run -- sh -c 'exit 5'").ends().code, 5);
    let ended = on_terminal("$CABANA run --timeout 500ms -- sleep 1000").ends();
    assert_eq!(ended.code, 124, "{ended:?}");
    assert!(ended.stdout.contains("timed out after 500ms"), "{ended:?}");
}

#[test]
fn keys_go_in_as_they_are() {
    let mut child = on_terminal("$CABANA run -- sh -c 'trap \"echo interrupted; exit 6\" INT; echo ready; read word; echo got $word; while :; do sleep 0.1; done'")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    let mut screen = child.stdout.take().unwrap();
    let mut said = read_until(&mut screen, "ready");
    std::io::Write::write_all(&mut keys, b"hello\r").unwrap();
    said += &read_until(&mut screen, "got hello");
    std::io::Write::write_all(&mut keys, b"\x03").unwrap();
    said += &read_until(&mut screen, "interrupted");
    drop(screen);
    drop(keys);
    assert_eq!(Ended::from(child.wait_with_output().unwrap()).code, 6, "{said:?}");
}

fn read_until(screen: &mut impl std::io::Read, wanted: &str) -> String {
    let mut said = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&said).contains(wanted) {
        assert_eq!(screen.read(&mut byte).unwrap(), 1, "ended before {wanted:?}: {:?}", String::from_utf8_lossy(&said));
        said.push(byte[0]);
    }
    String::from_utf8_lossy(&said).into_owned()
}

#[test]
fn a_new_size_is_passed_on() {
    let home = tempfile::tempdir().unwrap();
    let tty = home.path().join("tty");
    let script = "stty size; while [ \"$(stty size)\" != \"41 101\" ]; do sleep 0.05; done; echo resized";
    let line =
        format!("stty rows 30 cols 90; tty > {0}.new; mv {0}.new {0}; $CABANA run -- sh -c '{script}'", tty.display());
    let mut child = on_terminal(&line).stdout(Stdio::piped()).spawn().unwrap();
    let mut screen = child.stdout.take().unwrap();
    let said = read_until(&mut screen, "30 90");
    let name = fs::read_to_string(&tty).unwrap();
    Command::new("stty").args(["-F", name.trim(), "rows", "41", "cols", "101"]).ends().well();
    read_until(&mut screen, "resized");
    drop(screen);
    assert!(child.wait().unwrap().code().is_some(), "{said:?}");
}

#[test]
fn the_terminal_is_as_it_was_afterwards() {
    let home = tempfile::tempdir().unwrap();
    for (name, command) in [
        ("ends", "$CABANA run -- true"),
        ("fails", "$CABANA run -- no-such-program"),
        ("sets its own", "$CABANA run -- stty raw -echo"),
        ("times out", "$CABANA run --timeout 300ms -- sleep 1000"),
        ("is refused", "$CABANA run --user nobody-knows -- true"),
        ("dies", "$CABANA run -- sh -c 'kill -9 $$'"),
    ] {
        on_terminal(&between_looks(home.path(), command)).ends();
        assert_unchanged(home.path(), name);
    }
}

#[test]
fn the_terminal_is_as_it_was_after_a_signal_from_outside() {
    let home = tempfile::tempdir().unwrap();
    let pid = home.path().join("pid");
    for signal in ["-TERM", "-HUP", "-INT", "-QUIT"] {
        let script = format!("echo $$ > {}; exec $CABANA run -- sh -c \"echo ready; exec sleep 1000\"", pid.display());
        let line = between_looks(home.path(), &format!("sh -c '{script}'"));
        let mut child = on_terminal(&line).stdout(Stdio::piped()).spawn().unwrap();
        let mut screen = child.stdout.take().unwrap();
        read_until(&mut screen, "ready");
        Command::new("kill").args([signal, fs::read_to_string(&pid).unwrap().trim()]).ends().well();
        std::io::copy(&mut screen, &mut std::io::sink()).unwrap();
        child.wait().unwrap();
        assert_unchanged(home.path(), signal);
    }
}

/// A terminal, the end of which is ours, and a line of shell on it.
fn on_own_terminal(line: &str) -> (fs::File, Child) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).and_then(|()| unlockpt(&ours)).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = || {
        fs::File::options()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NOCTTY.bits().cast_signed())
            .open(&name)
            .unwrap()
    };
    let mut command = Command::new("setsid");
    command.args(["--ctty", "--wait", "sh", "-c", line]).env("CABANA", binary()).env("CABANA_DATA", data());
    let child = command.stdin(theirs()).stdout(theirs()).stderr(theirs()).spawn().unwrap();
    (ours.into(), child)
}

/// Types until the terminal takes no more: the command does not read, so its own terminal is full by then, too.
fn fill(terminal: &fs::File) {
    let before = fcntl_getfl(terminal).unwrap();
    fcntl_setfl(terminal, before | OFlags::NONBLOCK).unwrap();
    let mut refused = 0;
    wait_until("the terminal is full", || {
        while (&*terminal).write(b"typed for the command\n").is_ok() {
            refused = 0;
        }
        refused += 1;
        refused == 20
    });
    fcntl_setfl(terminal, before).unwrap();
}

/// As a guest has it that makes the terminal answer questions.
#[test]
fn what_is_typed_for_a_command_and_not_read_is_not_left_for_the_shell() {
    let home = tempfile::tempdir().unwrap();
    let pid = home.path().join("pid");
    let inside = "stty -echo; echo ready; exec sleep 1000";
    let script = format!("echo $$ > {}; exec $CABANA run -- sh -c \"{inside}\"", pid.display());
    let (mut terminal, mut child) = on_own_terminal(&format!("sh -c '{script}'; echo over; read word; echo got $word"));
    read_until(&mut terminal, "ready");
    fill(&terminal);
    Command::new("kill").args(["-TERM", fs::read_to_string(&pid).unwrap().trim()]).ends().well();
    read_until(&mut terminal, "over");
    terminal.write_all(b"end\n").unwrap();
    read_until(&mut terminal, "got end");
    child.wait().unwrap();
}

fn between_looks(home: &Path, command: &str) -> String {
    let home = home.display();
    format!("stty -g > {home}/before; {command}; stty -g > {home}/after")
}

#[track_caller]
fn assert_unchanged(home: &Path, why: &str) {
    let [before, after] = ["before", "after"].map(|name| fs::read_to_string(home.join(name)).unwrap());
    assert_eq!(before, after, "{why}");
    assert!(!before.is_empty());
    fs::remove_file(home.join("after")).unwrap();
}
