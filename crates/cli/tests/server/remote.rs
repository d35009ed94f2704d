//! The verbs of the command line that speak to a server.

mod bases;
mod copies;
mod keys;
mod lost;
mod quotas;
mod terminal;
mod tls;
mod volumes;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::stage::{PATIENCE, Server};

/// The binary, for whoever may read the data of the server.
fn cabana(server: &Server, words: &[&str]) -> Command {
    let mut command = bare(words);
    command.env("CABANA_DATA", server.data());
    command
}

fn bare(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cabana"));
    for name in ["CABANA_URL", "CABANA_API_KEY", "CABANA_TENANT", "CABANA_DATA"] {
        command.env_remove(name);
    }
    command.args(words).stdin(Stdio::null());
    command
}

#[derive(Debug, PartialEq, Eq)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

fn ends(mut command: Command) -> Ended {
    command.output().unwrap().into()
}

/// What it prints, if all is well.
#[track_caller]
fn says(server: &Server, words: &[&str]) -> String {
    let ended = ends(cabana(server, words));
    assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
    ended.stdout
}

/// A failure of ours, with all its parts.
#[track_caller]
fn fails(command: Command, exit: i32, code: &str) -> String {
    let ended = ends(command);
    assert_eq!(ended.code, Some(exit), "{ended:?}");
    assert!(ended.stderr.contains("error: ") && ended.stderr.contains("\nhint: "), "{ended:?}");
    assert!(ended.stderr.contains(&format!("\ncode: {code} (docs/errors/{code}.md)")), "{ended:?}");
    ended.stderr
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Once it has said this line.
fn started(mut command: Command, line: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    stdout.read_line(&mut said).unwrap();
    assert_eq!(said.trim_end(), line);
    (child, stdout)
}

#[test]
fn a_command_has_its_words_its_outputs_and_its_exit_code() {
    let server = Server::start();
    let exec = |words: &[&str]| ends(cabana(&server, &[&["exec", "box"], words].concat()));
    let ended = exec(&["--", "sh", "-c", "echo out; echo err >&2; printf ü; exit 7"]);
    assert_eq!(ended, Ended { code: Some(7), stdout: "out\nü".into(), stderr: "err\n".into() });
    assert_eq!(exec(&["--", "printf", "%s|", "a b", "", "$HOME", "--flag", "--"]).stdout, "a b||$HOME|--flag|--|");
    assert_eq!(exec(&["sh", "-c", "kill -KILL $$"]).code, Some(137));
    assert_eq!(exec(&["--timeout", "300ms", "--", "sleep", "600"]).code, Some(124));
    assert_eq!(exec(&["--", "nothing-like-it"]).code, Some(127));
    assert_eq!(exec(&["--", "/etc/passwd"]).code, Some(126));
    let asked = ["--env", "A=1", "--workdir", "/tmp", "--user", "root", "--", "sh", "-c", "echo $A $PWD $(id -u)"];
    assert_eq!(exec(&asked).stdout, "1 /tmp 0\n");
    let json: Value = serde_json::from_str(&exec(&["--json", "--", "echo", "hi"]).stdout).unwrap();
    assert_eq!((&json["stdout"], &json["exit_code"]), (&Value::from("hi\n"), &Value::from(0)));
    fails(cabana(&server, &["exec", "box", "--timeout", "5", "--", "true"]), 125, "bad_request");
    fails(cabana(&server, &["exec", "k3vq7xw2m9pd5ru8thya", "--", "true"]), 125, "sandbox_not_found");
}

#[test]
fn input_goes_in_byte_for_byte() {
    let server = Server::start();
    let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut command = cabana(&server, &["exec", "-i", "--scope", "fixed:box", "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&sent));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success() && output.stdout == bytes, "{} bytes came back", output.stdout.len());
}

#[test]
fn a_scope_is_one_sandbox_by_whatever_word() {
    let server = Server::start();
    says(&server, &["exec", "box", "--", "touch", "here"]);
    let id = says(&server, &["ls"]).lines().nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    for words in [&["box"][..], &["fixed:box"], &[id.as_str()], &["--scope", "fixed:box"]] {
        assert_eq!(says(&server, &[&["exec"], words, &["--", "ls"]].concat()), "here\n", "{words:?}");
    }
    says(&server, &["exec", "user:ann", "--", "true"]);
    let listed: Value = serde_json::from_str(&says(&server, &["ls", "--json"])).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert!(says(&server, &["ls"]).contains("user:ann"));
    says(&server, &["stop", "box"]);
    assert!(says(&server, &["ls", "--state", "stopped"]).contains(&id));
    assert_eq!(says(&server, &["exec", "box", "--", "ls"]), "here\n", "its files are kept");
    says(&server, &["rm", "box", "user:ann"]);
    assert_eq!(says(&server, &["ls", "--json"]), "[]\n");
    fails(cabana(&server, &["rm", "box"]), 1, "sandbox_not_found");
}

#[test]
fn a_command_in_the_background_is_listed_followed_and_ended() {
    let server = Server::start();
    let begin = |script: &str| says(&server, &["exec", "-d", "box", "--", "sh", "-c", script]).trim().to_owned();
    let task = begin("echo begun; until test -e /workspace/go; do sleep 0.05; done; echo gone on; echo err >&2");
    wait_until("it says something", || says(&server, &["logs", &task]) == "begun\n");
    assert!(says(&server, &["ps", "box"]).contains(&task));
    let (child, mut rest) = started(cabana(&server, &["logs", "-f", &task]), "begun");
    says(&server, &["exec", "box", "--", "touch", "/workspace/go"]);
    let mut said = String::new();
    rest.read_to_string(&mut said).unwrap();
    let ended = Ended::from(child.wait_with_output().unwrap());
    assert_eq!((said.as_str(), ended.stderr.as_str(), ended.code), ("gone on\n", "err\n", Some(0)));
    assert!(!says(&server, &["ps"]).contains(&task) && says(&server, &["ps", "-a"]).contains("succeeded"));
    let task = begin("sleep 600");
    says(&server, &["stop", &task]);
    assert!(says(&server, &["ps", "-a"]).contains("cancelled"));
    fails(cabana(&server, &["logs", "neither"]), 1, "bad_request");
}

#[test]
fn who_is_interrupted_interrupts_the_command() {
    let server = Server::start();
    let words = ["exec", "box", "--", "sh", "-c", "echo up; sleep 600"];
    let (child, _stdout) = started(cabana(&server, &words), "up");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(Ended::from(child.wait_with_output().unwrap()).code, Some(130));
    assert_eq!(says(&server, &["exec", "box", "--", "sh", "-c", "pgrep -c sleep || true"]), "0\n");
}

#[test]
fn a_closed_output_ends_the_command() {
    let server = Server::start();
    let (child, stdout) = started(cabana(&server, &["exec", "box", "--", "yes"]), "y");
    drop(stdout);
    assert_eq!(Ended::from(child.wait_with_output().unwrap()).code, Some(141));
    wait_until("nothing of it is left", || {
        says(&server, &["exec", "box", "--", "sh", "-c", "pgrep -c yes || true"]) == "0\n"
    });
}

#[test]
fn the_ledger_is_checked_by_who_reads_it() {
    let server = Server::start();
    for n in 0..3 {
        says(&server, &["exec", "box", "--", "echo", &n.to_string()]);
    }
    let head = server.data().join("head.json");
    fs::write(&head, says(&server, &["ledger", "head"])).unwrap();
    says(&server, &["exec", "box", "--", "true"]);
    let rows = says(&server, &["ledger", "ls"]);
    assert!(rows.lines().count() > 4 && rows.contains("echo 2"), "{rows}");
    let told = ends(cabana(&server, &["ledger", "verify", "--head", head.to_str().unwrap()]));
    assert!(told.code == Some(0) && told.stderr.contains("whole") && told.stderr.contains("cut off"), "{told:?}");
    let text = fs::read_to_string(&head).unwrap();
    let after = |name: &str| text.find(name).unwrap() + name.len();
    let (seq, hash) = (after("\"seq\":"), after("\"hash\":\""));
    let other = if text[hash..].starts_with('0') { '1' } else { '0' };
    for (change, says) in [
        (format!("{}9{}", &text[..seq], &text[seq..]), "ends at row"),
        (format!("{}{other}{}", &text[..hash], &text[hash + 1..]), "written anew"),
    ] {
        fs::write(&head, change).unwrap();
        let told = fails(cabana(&server, &["ledger", "verify", "--head", head.to_str().unwrap()]), 1, "internal");
        assert!(told.contains(says), "{told}");
    }
}

#[test]
fn a_link_opens_a_port() {
    let server = Server::start();
    says(
        &server,
        &["exec", "-d", "box", "--", "sh", "-c", "echo hello > index.html; exec python3 -m http.server 8000"],
    );
    let url = says(&server, &["open", "--path", "box", "8000"]).trim().to_owned();
    // As a browser does: the link becomes a cookie.
    let jar = server.data().join("cookies");
    let page = || {
        let jar = jar.to_str().unwrap();
        Command::new("curl").args(["-sSL", "--noproxy", "*", "-b", jar, "-c", jar, &url]).output().unwrap().stdout
    };
    wait_until("it is served", || page() == b"hello\n");
}
