//! A connection that breaks, and a server that is started again, while a command runs.

use std::{
    io::{BufRead, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::Command,
    sync::{Arc, Mutex},
};

use super::{Ended, bare, cabana, says, started};
use crate::stage::Server;

/// Passes on what comes and goes, until it is told to break.
struct Wire {
    url: String,
    to: Arc<Mutex<String>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Wire {
    fn new(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let to = Arc::new(Mutex::new(address(server)));
        let open = Arc::<Mutex<Vec<TcpStream>>>::default();
        let (known, kept) = (to.clone(), open.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(known.lock().unwrap().as_str()) else { continue };
                kept.lock().unwrap().extend([near.try_clone().unwrap(), far.try_clone().unwrap()]);
                let (near_again, far_again) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || pass(near, far));
                std::thread::spawn(move || pass(far_again, near_again));
            }
        });
        Self { url, to, open }
    }

    fn cut(&self) {
        for end in self.open.lock().unwrap().drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn address(server: &Server) -> String {
    server.url.strip_prefix("http://").unwrap().to_owned()
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    let mut part = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut part) {
        if to.write_all(&part[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

fn through(wire: &Wire, server: &Server, script: &str) -> Command {
    let mut command = bare(&["exec", "box", "--", "sh", "-c", script]);
    command.env("CABANA_URL", &wire.url).env("CABANA_API_KEY", &server.key);
    command
}

const SCRIPT: &str = "echo begun; until test -e /workspace/go; do sleep 0.05; done; seq 100; echo run >> count; exit 3";

#[track_caller]
fn is_whole(server: &Server, child: std::process::Child, mut stdout: impl Read) {
    says(server, &["exec", "box", "--", "touch", "/workspace/go"]);
    let mut said = String::new();
    stdout.read_to_string(&mut said).unwrap();
    let ended = Ended::from(child.wait_with_output().unwrap());
    let numbers: String = (1..=100).map(|n| format!("{n}\n")).collect();
    assert_eq!((said, ended.code), (numbers, Some(3)), "{}", ended.stderr);
    assert_eq!(says(server, &["exec", "box", "--", "cat", "count"]), "run\n", "it ran once");
}

#[test]
fn a_connection_that_breaks_loses_and_doubles_nothing() {
    let server = Server::start();
    let wire = Wire::new(&server);
    let (child, stdout) = started(through(&wire, &server, SCRIPT), "begun");
    wire.cut();
    is_whole(&server, child, stdout);
}

#[test]
fn a_server_that_is_started_again_loses_and_doubles_nothing() {
    let mut server = Server::start();
    let wire = Wire::new(&server);
    let (child, stdout) = started(through(&wire, &server, SCRIPT), "begun");
    server.kill();
    server.run();
    *wire.to.lock().unwrap() = address(&server);
    is_whole(&server, child, stdout);
}

/// Another account takes a port as soon as it is free, and says what comes there: a line for each connection.
const TAKES_A_PORT: &str = r#"
import os, socket, sys
os.setgid(65534)
os.setuid(65534)
print("waits", flush=True)
taken = socket.socket()
taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
while True:
    try:
        taken.bind(("127.0.0.1", int(sys.argv[1])))
        break
    except OSError:
        pass
taken.listen()
print("has it", flush=True)
while True:
    connection, _ = taken.accept()
    connection.settimeout(10)
    try:
        print(connection.recv(65536), flush=True)
    except OSError as error:
        print(error, flush=True)
    connection.close()
"#;

#[test]
fn an_account_that_takes_the_port_of_a_server_that_ended_is_not_sent_its_key() {
    let mut server = Server::start();
    let (mut follows, _stdout) = started(cabana(&server, &["exec", "box", "--", "sh", "-c", SCRIPT]), "begun");
    let port = address(&server).rsplit_once(':').unwrap().1.to_owned();
    let mut takes = Command::new("python3");
    takes.args(["-c", TAKES_A_PORT, &port]);
    let (mut taker, lines) = started(takes, "waits");
    let mut lines = lines.lines().map(Result::unwrap);
    server.kill();
    assert_eq!(lines.next().as_deref(), Some("has it"));
    // The command line asks again and again whether the server is back.
    for _ in 0..3 {
        assert_eq!(lines.next().as_deref(), Some("b''"));
    }
    follows.kill().unwrap();
    follows.wait().unwrap();
    let mut told = bare(&["ls"]);
    told.env("CABANA_URL", &server.url).env("CABANA_API_KEY", &server.key);
    told.output().unwrap();
    let sent = lines.next().unwrap();
    assert!(sent.contains(&server.key), "the control, with an address that the caller has named: {sent}");
    taker.kill().unwrap();
    taker.wait().unwrap();
}
