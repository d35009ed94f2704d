//! What opens a server, and who gets to see it.

use std::{
    io::{Read, Write},
    net::TcpListener,
    process::Stdio,
};

use super::{bare, cabana, ends, fails, says};
use crate::stage::Server;

#[test]
fn a_key_opens_until_it_is_revoked_and_no_more_than_its_role() {
    let server = Server::start();
    let add = |role: &str| says(&server, &["key", "add", "test", "--role", role, "--expires", "12h"]).trim().to_owned();
    let (using, reading) = (add("use"), add("read"));
    let with = |key: &str, words: &[&str]| {
        let mut command = bare(words);
        command.env("CABANA_URL", &server.url).env("CABANA_API_KEY", key);
        command
    };
    assert_eq!(ends(with(&using, &["exec", "box", "--", "echo", "hi"])).stdout, "hi\n");
    fails(with(&reading, &["exec", "box", "--", "echo", "hi"]), 125, "forbidden");
    assert_eq!(ends(with(&reading, &["ls"])).code, Some(0));
    fails(with(&using, &["key", "ls"]), 1, "forbidden");
    let listed = says(&server, &["key", "ls"]);
    assert!(!listed.contains(&using) && !listed.contains(&reading), "{listed}");
    let id = listed.lines().find(|line| line.contains(" use ")).unwrap().split_whitespace().next().unwrap();
    says(&server, &["key", "rm", id]);
    fails(with(&using, &["ls"]), 1, "unauthorized");
    let told = fails(with("", &["ls"]), 1, "unauthorized");
    assert!(told.contains("CABANA_API_KEY"), "{told}");
}

/// What a client says to whoever listens there.
fn overheard(listener: &TcpListener, mut command: std::process::Command) -> String {
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let (mut said, mut part) = (String::new(), [0; 4096]);
    while !said.contains("\r\n\r\n") {
        let read = stream.read(&mut part).unwrap();
        assert!(read > 0, "{said}");
        said += &String::from_utf8_lossy(&part[..read]);
    }
    stream.write_all(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
    drop(stream);
    child.wait_with_output().unwrap();
    said
}

#[test]
fn the_operators_key_goes_to_nobody_else() {
    let mut server = Server::start();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut elsewhere = cabana(&server, &["ls"]);
    elsewhere.env("CABANA_URL", format!("http://{}", other.local_addr().unwrap()));
    assert!(!overheard(&other, elsewhere).contains("e2b_"), "a server of somebody else");
    let address = server.url.strip_prefix("http://").unwrap().to_owned();
    server.kill();
    let thief = TcpListener::bind(&address).unwrap();
    let mut left = cabana(&server, &["ls"]);
    left.env("CABANA_URL", format!("http://{address}"));
    assert!(!overheard(&thief, left).contains("e2b_"), "one that took the port of a server that is gone");
}

#[test]
fn a_server_that_is_not_there_is_no_riddle() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = bare(&["ls"]);
    command.env("CABANA_URL", format!("http://{free}")).env("CABANA_API_KEY", "e2b_x");
    let told = fails(command, 1, "provider_offline");
    assert!(told.contains("cabana serve") && told.contains("CABANA_URL"), "{told}");
    let mut command = bare(&["ls"]);
    command.env("CABANA_URL", "nowhere");
    assert!(fails(command, 1, "bad_request").contains("CABANA_URL"));
}
