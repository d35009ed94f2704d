//! `cabana probe`: what it says of this server, and of one that lacks what newer SDKs need.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    process::{Command, Output},
};

use serde_json::Value;

use crate::stage::Server;

fn probe(url: &str, key: &str, flags: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cabana"));
    command.args(["probe", url]).args(flags).env("E2B_API_KEY", key).env_remove("E2B_SANDBOX_URL").output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn sk_11_this_server_has_all_that_every_generation_needs() {
    let server = Server::start();
    let done = probe(&server.url, &server.key, &["--json"]);
    assert!(done.status.success(), "{}", text(&done));
    let told: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(told["sdks"].as_array().unwrap().len(), 3, "{told:#}");
    assert_eq!((&told["has_connect"], &told["needs_fallback"]), (&true.into(), &false.into()));
    let not_there: Vec<_> = told["steps"].as_array().unwrap().iter().filter(|step| step["there"] != "yes").collect();
    assert!(not_there.is_empty(), "{not_there:?}");
    assert_eq!(server.get("/v1/sandboxes").await["sandboxes"], Value::Array(Vec::new()), "nothing is left of it");
    let words = text(&probe(&server.url, &server.key, &[]));
    assert!(words.contains("SDKs 2.51 and newer: all that they need is there"), "{words}");
    assert!(words.contains("nobody needs a fallback"), "{words}");
}

#[test]
fn sk_11_who_is_not_let_in_or_finds_nobody_is_told_so() {
    let server = Server::start();
    let done = probe(&server.url, &format!("e2b_{}", "0".repeat(40)), &[]);
    assert!(!done.status.success() && text(&done).contains("unauthorized"), "{}", text(&done));
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap(); // closed again at once
    let done = probe(&format!("http://{free}"), &server.key, &[]);
    assert!(!done.status.success() && text(&done).contains("look whether it serves"), "{}", text(&done));
    for bad in ["nothing", "ftp://x", "http://"] {
        let done = probe(bad, &server.key, &[]);
        assert!(!done.status.success() && text(&done).contains("is no address"), "{}", text(&done));
    }
    let done = probe(&server.url, "", &[]);
    assert!(!done.status.success() && text(&done).contains("E2B_API_KEY"), "{}", text(&done));
}

/// A server of the first generation: it has no `/connect`, and says so as its router does.
#[test]
fn sk_10_a_server_without_connect_is_told_apart_and_the_way_around_it_is_said() {
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", door.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in door.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (mut first, mut length) = (String::new(), 0);
            stream.read_line(&mut first).unwrap();
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            stream.read_exact(&mut vec![0; length]).unwrap();
            let (status, body) = old(&first);
            let head = "content-type: application/json\r\nconnection: close";
            write!(stream.get_mut(), "HTTP/1.1 {status}\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                .unwrap();
        }
    });
    let done = probe(&url, "e2b_00", &[]);
    let words = text(&done);
    assert!(done.status.success(), "{words}");
    assert!(words.contains("SDKs 2.0 to 2.5: all that they need is there"), "{words}");
    assert!(words.contains("SDKs 2.6 to 2.50: missing: connect\n"), "{words}");
    assert!(words.contains("SDKs 2.51 and newer: missing: create_v2, connect_v2\n"), "{words}");
    assert!(words.contains("/connect is missing: look"), "{words}");
}

fn old(first: &str) -> (&'static str, &'static str) {
    const SANDBOX: &str = r#"{"sandboxID":"i0","templateID":"base","clientID":"c","envdVersion":"0.2.0","envdAccessToken":"t","state":"running"}"#;
    let mut words = first.split(' ');
    match (words.next().unwrap(), words.next().unwrap()) {
        ("GET", "/v2/sandboxes") => ("200 OK", "[]"),
        ("POST", "/sandboxes") => ("201 Created", SANDBOX),
        ("GET", "/sandboxes/i0") => ("200 OK", SANDBOX),
        ("POST", "/sandboxes/i0/resume") => ("201 Created", SANDBOX),
        ("POST", "/sandboxes/i0/timeout" | "/sandboxes/i0/pause") | ("DELETE", "/sandboxes/i0") => {
            ("204 No Content", "")
        }
        ("GET", "/health") => ("204 No Content", ""),
        ("POST", "/filesystem.Filesystem/Stat") => ("200 OK", r#"{"entry":{}}"#),
        ("POST", "/process.Process/Start") => ("200 OK", r#"{"event":{"end":{}}}"#),
        _ => ("404 Not Found", "404 page not found"),
    }
}
