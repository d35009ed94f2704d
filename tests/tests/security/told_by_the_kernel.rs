//! What tables of the kernel tell about the host to who reads them from inside.

use std::{
    fs,
    net::{TcpListener, UdpSocket},
    os::unix::net::UnixListener,
};

use cabana_sandbox::{ExecSpec, NetworkPolicy, SandboxSpec};

use crate::{
    attacks::{FAMILIES, on_host},
    inside::{Inside, passing, path, unique},
};

/// Runs the script on the host, where it must say each of the words, and inside, as everybody, where it must not.
async fn only_the_host_says(words: &[&str], script: &str) {
    let host = on_host(script).out;
    for word in words {
        assert!(host.contains(word), "the host says {word}: {host}");
    }
    for network in [NetworkPolicy::Off, NetworkPolicy::Public] {
        let inside = Inside::with(SandboxSpec { network, ..passing() }).await;
        for user in ["root", "user"] {
            let said = inside.command(user, ExecSpec::shell(script, path("/"))).await.out;
            assert!(!words.iter().any(|word| said.contains(word)), "{words:?} as {user}: {said}");
        }
        inside.end().await;
    }
}

#[tokio::test]
async fn ports_that_the_host_listens_at_in_proc_net() {
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let ports = [tcp.local_addr().unwrap().port(), udp.local_addr().unwrap().port()];
    let words = ports.map(|port| format!("0100007F:{port:04X}"));
    let script = "cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 /proc/[0-9]*/net/tcp /proc/[0-9]*/net/udp 2>/dev/null; true";
    only_the_host_says(&words.each_ref().map(String::as_str), script).await;
}

#[tokio::test]
async fn sockets_of_the_host_by_their_paths_in_proc_net() {
    let dir = tempfile::tempdir().unwrap();
    let name = dir.path().join(unique("socket"));
    let _listener = UnixListener::bind(&name).unwrap();
    only_the_host_says(&[name.to_str().unwrap()], "cat /proc/net/unix /proc/[0-9]*/net/unix 2>/dev/null; true").await;
}

#[tokio::test]
async fn devices_and_routes_of_the_host_in_proc_net() {
    let routes = fs::read_to_string("/proc/net/dev").unwrap();
    let device =
        routes.lines().skip(2).filter_map(|line| line.split(':').next()).map(str::trim).find(|name| *name != "lo");
    let device = device.expect("the host has a network");
    only_the_host_says(&[&format!("{device}:")], "cat /proc/net/dev /proc/[0-9]*/net/dev 2>/dev/null; true").await;
}

#[tokio::test]
async fn sockets_of_the_host_by_asking_the_kernel_for_them() {
    const DIAGNOSIS: &str = "16:3:4";
    FAMILIES.run_on_host(&[DIAGNOSIS]).report().all_done();
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        inside.attack(user, &FAMILIES, &[DIAGNOSIS]).await.report().nothing_done();
    }
    inside.end().await;
}

#[tokio::test]
async fn file_systems_of_the_host_in_proc_fs() {
    let script = "ls -A /proc/fs";
    assert_ne!(on_host(script).ok(), "", "the host has some");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        assert_eq!(inside.command(user, ExecSpec::shell(script, path("/"))).await.ok(), "", "as {user}");
    }
    inside.end().await;
}

/// By the number of a block on the disk, files of others could be told apart and found again.
#[tokio::test]
async fn the_place_of_a_file_on_the_hosts_disk() {
    let script = "import array, fcntl, os, sys
block = array.array('i', [0])
try: fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 1, block); print('told')
except OSError as error: print('refused', error.errno)";
    let own = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::write(own.path(), "x".repeat(10_000)).unwrap();
    let control = on_host(&format!("python3 - {} <<'EOF'\n{script}\nEOF", own.path().display())).ok();
    assert!(control == "told", "the host's root is told: {control}");
    let inside = Inside::new().await;
    for file in ["/usr/bin/bash", "/etc/passwd", "/home/user/.bashrc"] {
        let spec = ExecSpec::argv(["python3", "-c", script, file], path("/"));
        let said = inside.command("root", spec).await.out;
        assert!(!said.contains("told"), "{file}: {said}");
    }
    inside.end().await;
}

#[tokio::test]
async fn processes_of_the_host_by_the_numbers_of_their_files() {
    let own = std::process::id();
    assert!(fs::exists(format!("/proc/{own}/status")).unwrap());
    let inside = Inside::new().await;
    // All numbers that there can be, and names that stand in no listing.
    let script = format!(
        "for p in $(seq 2 40000); do [ -e /proc/$p ] && cat /proc/$p/comm; done 2>/dev/null; ls -d /proc/{own} /proc/{own}/task /proc/self/task/{own} 2>/dev/null; true"
    );
    let said = inside.root(&script).await.ok();
    let known = ["sh", "bash", "seq", "cat", "cabana-init"];
    assert!(said.lines().all(|line| known.contains(&line)), "{said}");
    inside.end().await;
}
