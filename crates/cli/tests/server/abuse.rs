//! Clients and disks that do not behave.

use std::{path::PathBuf, process::Command};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::stage::{PATIENCE, Server, refused, until};

#[tokio::test]
async fn clients_that_never_finish_their_head_are_let_go_and_hold_up_nobody() {
    let server = Server::start();
    let at = server.url.strip_prefix("http://").unwrap();
    let mut slow = Vec::new();
    for n in 0..200 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        stream.write_all(format!("GET /livez HTTP/1.1\r\nX-Slow: {n}").as_bytes()).await.unwrap();
        slow.push(stream);
    }
    assert_eq!(server.stdout("one", "echo served").await, "served\n");
    for mut stream in slow {
        let end = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await;
        assert!(end.is_ok(), "the server lets go of it");
    }
}

#[tokio::test]
async fn clients_that_never_finish_their_body_are_told_and_hold_up_nobody() {
    let server = Server::start();
    let at = server.url.strip_prefix("http://").unwrap();
    let mut slow = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let head =
            format!("POST /v1/exec HTTP/1.1\r\nHost: x\r\nX-API-KEY: {}\r\nContent-Length: 100\r\n\r\n", server.key);
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(b"{\"command\":").await.unwrap();
        slow.push(stream);
    }
    assert_eq!(server.stdout("one", "echo served").await, "served\n");
    for mut stream in slow {
        let mut answer = Vec::new();
        let _ =
            tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("the server lets go of it");
        assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
    }
}

#[tokio::test]
async fn what_is_no_request_is_refused() {
    let server = Server::start();
    let at = server.url.strip_prefix("http://").unwrap();
    let long = format!("GET /livez HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "a".repeat(1 << 20));
    for bytes in [
        "\0\0\0\0",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "POST /v1/exec HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n",
        &long,
    ] {
        let mut stream = TcpStream::connect(at).await.unwrap();
        let _ = stream.write_all(bytes.as_bytes()).await; // it may be refused before it is all said
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it is answered or ended");
        let text = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    assert_eq!(server.stdout("one", "echo served").await, "served\n");
}

/// A disk of its own for the database.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn at(path: PathBuf) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        let mut mount = Command::new("mount");
        assert!(mount.args(["-t", "tmpfs", "-o", "size=8m", "small"]).arg(&path).status().unwrap().success());
        Self(path)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_is_told_while_it_lasts_and_nothing_is_wrong_after() {
    let mut disk = None;
    let mut server = Server::start_after(|data| disk = Some(SmallDisk::at(data.join("db"))));
    server.stdout("one", "echo before").await;
    let filler = server.data().join("db/filler");
    let fill = || {
        let mut bytes = vec![0; 9 << 20];
        // As much as there is room for, and at last by single pages.
        while !bytes.is_empty() && std::fs::write(&filler, &bytes).is_err() {
            bytes.truncate(bytes.len() - 4096);
        }
    };
    let exec = async || {
        let body = serde_json::json!({ "scope": { "scheme": "fixed", "name": "one" }, "command": "echo run >> log" });
        server.post("/v1/exec", &body).send().await.unwrap()
    };
    let told = until(|| async {
        fill();
        let answer = exec().await;
        if answer.status().is_success() { None } else { Some(refused(answer).await) }
    });
    assert_eq!(told.await, (503, "store_unavailable".into()));
    assert!(server.get("/v1/sandboxes").await["sandboxes"].is_array(), "what only looks is answered");
    std::fs::remove_file(&filler).unwrap();
    until(|| async { exec().await.status().is_success().then_some(()) }).await;
    // All that was recorded is there, also for the next server.
    let head = server.get("/v1/ledger/head").await;
    server.kill();
    server.run();
    assert_eq!(server.get("/v1/ledger/head").await, head);
    let open = server.get("/v1/calls?limit=1000").await;
    assert!(open["calls"].as_array().unwrap().iter().all(|call| call["state"] != "running"));
    drop(server); // before its disk
}
