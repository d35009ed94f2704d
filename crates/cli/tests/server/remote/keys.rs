//! What opens a server, and who gets to see it.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    fs::{FlockOperation, fcntl_lock, flock},
    mount::{MountFlags, mount},
    process::Uid,
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
fn overheard(listener: &TcpListener, mut command: Command) -> String {
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

/// What a server of this address leaves in its data directory.
fn leave_behind(data: &Path, server: &str) -> File {
    fs::write(data.join("admin.key"), "e2b_0123456789abcdef0123456789abcdef01234567\n").unwrap();
    let mut options = File::options();
    let mut lock = options.write(true).create_new(true).mode(0o600).open(data.join("server.lock")).unwrap();
    write!(lock, "{}\nhttp://{server}\n", std::process::id()).unwrap();
    lock
}

fn ls(data: &Path, server: &str) -> Command {
    let mut command = bare(&["ls"]);
    command.env("CABANA_DATA", data).env("CABANA_URL", format!("http://{server}"));
    command
}

/// Anybody can have a file whose inode has the same number on another file system, and lock that.
#[test]
fn a_lock_on_another_file_of_the_same_inode_number_is_not_the_servers() {
    const TOLD: &str = "CABANA_TEST_HAS_OWN_MOUNTS";
    if std::env::var_os(TOLD).is_none() {
        let mut again = Command::new("unshare");
        again.args(["--mount", "--propagation", "private"]).arg(std::env::current_exe().unwrap());
        let name = "remote::keys::a_lock_on_another_file_of_the_same_inode_number_is_not_the_servers";
        let run = again.args([name, "--exact", "--nocapture"]).env(TOLD, "").output().unwrap();
        let said = String::from_utf8_lossy(&run.stdout);
        assert!(run.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&run.stderr));
        return;
    }
    let (data, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for disk in [&data, &other] {
        // Each counts its inodes from the first on.
        mount("disk", disk.path(), "tmpfs", MountFlags::empty(), c"size=8m").unwrap();
    }
    let thief = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = thief.local_addr().unwrap().to_string();
    let inode = leave_behind(data.path(), &address).metadata().unwrap().ino();
    let mut files = (0..10_000).map(|n| File::create_new(other.path().join(n.to_string())).unwrap());
    let same = files.find(|file| file.metadata().unwrap().ino() == inode).unwrap();
    flock(&same, FlockOperation::LockExclusive).unwrap();
    fcntl_lock(&same, FlockOperation::LockExclusive).unwrap();
    assert!(!overheard(&thief, ls(data.path(), &address)).contains("e2b_"));
}

/// A server that is told to end lets its port go first, and holds the lock as long as it has something to do.
#[test]
fn a_port_of_another_account_is_not_the_servers_while_it_holds_its_lock() {
    let data = tempfile::tempdir().unwrap();
    for (account, is_told) in [(0, true), (65_534, false)] {
        let listener = std::thread::spawn(move || {
            // Of this thread alone: whoever makes a socket is whose it is.
            rustix::thread::set_thread_uid(Uid::from_raw(account)).unwrap();
            TcpListener::bind("127.0.0.1:0").unwrap()
        });
        let listener = listener.join().unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let _ = fs::remove_file(data.path().join("server.lock"));
        let lock = leave_behind(data.path(), &address);
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        fcntl_lock(&lock, FlockOperation::LockExclusive).unwrap();
        assert_eq!(overheard(&listener, ls(data.path(), &address)).contains("e2b_"), is_told, "{account}");
    }
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
