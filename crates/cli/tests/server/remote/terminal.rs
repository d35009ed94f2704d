//! A terminal in a sandbox. `script` gives us one here.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use super::{Ended, cabana, fails};
use crate::stage::Server;

/// On a fresh terminal; `$CABANA` is the binary.
pub(super) fn on_terminal(server: &Server, line: &str) -> Command {
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", line, "/dev/null"]);
    command.env("CABANA", env!("CARGO_BIN_EXE_cabana")).env("CABANA_DATA", server.data()).env("TERM", "vt100");
    command.env_remove("CABANA_URL").env_remove("CABANA_API_KEY").stdin(Stdio::null());
    command
}

#[test]
fn a_shell_has_a_terminal_of_its_own_and_its_exit_code_is_ours() {
    let server = Server::start();
    let line = "stty cols 91 rows 17; $CABANA shell box -- sh -c 'test -t 0 && stty size; exit 5'";
    let ended = Ended::from(on_terminal(&server, line).output().unwrap());
    assert!(ended.code == Some(5) && ended.stdout.contains("17 91\r\n"), "{ended:?}");
}

#[test]
fn keys_go_in_and_the_login_shell_answers() {
    let server = Server::start();
    let mut command = on_terminal(&server, "$CABANA shell box");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut keys = child.stdin.take().unwrap();
    keys.write_all(b"echo $((6 * 7)); exit 6\r").unwrap();
    let ended = Ended::from(child.wait_with_output().unwrap());
    drop(keys);
    assert!(ended.code == Some(6) && ended.stdout.contains("42"), "{ended:?}");
}

#[test]
fn without_a_terminal_there_is_no_shell() {
    let server = Server::start();
    assert!(fails(cabana(&server, &["shell", "box"]), 125, "bad_request").contains("cabana exec"));
}
