//! Unix sockets with a name in a directory that others see as well: through one of them two sandboxes would hand each other descriptors.

use std::{fs, os::unix::fs::FileTypeExt, path::Path};

use cabana_sandbox::{ExecSpec, Provider, SandboxId, SandboxSpec, SnapshotId, Source, View, VolumeId};

use crate::{
    attacks::{NAMED_SOCKETS, SWAP},
    inside::{Inside, engine, passing, path, rest, unique},
};

const SEEN: &str = "/workspace/holder/seen";

/// Sandboxes that see one directory of the host, and one that sees a volume.
fn showing(dir: &Path) -> SandboxSpec {
    let view = View { source: Source::Host(dir.into()), at: path(SEEN), writable: true };
    SandboxSpec { views: vec![view], ..passing() }
}

fn shared() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(4321), Some(4321)).unwrap();
    dir
}

fn sockets(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().flatten();
    let is_socket = |entry: &fs::DirEntry| entry.file_type().unwrap().is_socket();
    entries.filter(is_socket).map(|entry| entry.file_name().into_string().unwrap()).collect()
}

async fn tries_every_way(inside: &Inside, user: &str) {
    for own in ["/tmp", "/dev/shm"].map(|place| format!("{place}/own-{user}")) {
        inside.command(user, ExecSpec::shell(format!("mkdir {own}"), path("/"))).await.ok();
        let done = inside.attack(user, &NAMED_SOCKETS, &["bind", &own]).await.report();
        done.all_done();
    }
    let seen = inside.attack(user, &NAMED_SOCKETS, &["bind", SEEN]).await.report();
    seen.all_refused(&["EPERM", "EXDEV"]);
    assert_eq!((seen.of("absolute"), seen.of("rename"), seen.of("link")), ("EPERM", "EXDEV", "EXDEV"));
}

#[tokio::test]
async fn a_socket_named_in_a_directory_of_the_host() {
    let dir = shared();
    let inside = Inside::with(showing(dir.path())).await;
    for user in ["root", "user"] {
        tries_every_way(&inside, user).await;
    }
    inside.user(&format!("touch {SEEN}/file")).await.ok();
    assert!(sockets(dir.path()).is_empty(), "{:?}", sockets(dir.path()));
    // What the host has there can be used.
    let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("hosts")).unwrap();
    std::os::unix::fs::chown(dir.path().join("hosts"), Some(4321), Some(4321)).unwrap();
    let connect = format!("import socket; socket.socket(socket.AF_UNIX).connect('{SEEN}/hosts')");
    inside.command("user", ExecSpec::argv(["python3", "-c", &connect], path("/"))).await.ok();
    inside.end().await;
}

#[tokio::test]
async fn a_socket_named_in_a_volume_and_in_one_that_is_mounted_late() {
    let engine = engine().await;
    let volume = VolumeId::now();
    engine.make_volume(volume).await.unwrap();
    let view = View { source: Source::Volume(volume), at: path(SEEN), writable: true };
    let early = Inside::of(engine.clone(), &SandboxSpec { views: vec![view.clone()], ..passing() }).await;
    tries_every_way(&early, "root").await;
    let late = Inside::of(engine.clone(), &passing()).await;
    late.sandbox.update(cabana_sandbox::Wanted::Views(vec![view])).await.unwrap();
    tries_every_way(&late, "root").await;
    for inside in [early, late] {
        engine.destroy(inside.sandbox.id()).await.unwrap();
    }
    engine.remove_volume(volume).await.unwrap();
    engine.close().await;
}

/// Names are looked up twice. What lies between is exchanged all the time: a directory for a link to the view, and the directory above for
/// the one that the view lies in.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_exchanged_for_a_view_while_a_socket_is_named() {
    let dir = shared();
    let inside = Inside::with(showing(dir.path())).await;
    let prepare = format!(
        "mkdir -p /tmp/race/plain /tmp/other /tmp/above/seen /tmp/both/one /tmp/both/two;
         ln -s {SEEN} /tmp/race/view; ln -s /tmp/both/two /tmp/both/link"
    );
    inside.root(&prepare).await.ok();
    let mut made = 0;
    for (one, other, at) in [
        ("/tmp/race/plain", "/tmp/race/view", "/tmp/race/plain/s"),
        ("/tmp/above", "/workspace/holder", "/tmp/above/seen/s"),
        ("/tmp/both/one", "/tmp/both/link", "/tmp/both/one/s"),
    ] {
        let stop = format!("/tmp/{}", unique("stop"));
        let swap = inside.start("root", &SWAP, &[one, other, &stop]).await;
        let said = inside.attack("root", &NAMED_SOCKETS, &["race", at, "400"]).await.ok();
        inside.root(&format!("touch {stop}")).await.ok();
        let exchanged: u64 = rest(swap).await.0.trim().parse().unwrap();
        assert!(exchanged > 100, "{exchanged}");
        made += said.split(' ').next().unwrap().parse::<u32>().unwrap();
    }
    assert!(made > 100, "{made}");
    assert!(sockets(dir.path()).is_empty(), "{:?}", sockets(dir.path()));
    // Where both sides are the sandbox's own, some land on each: the look-ups do race with the exchanges.
    let landed = inside.root("find /tmp/both -path '*/two/s*' | grep -c . ; find /tmp/both -path '*/two/s*' -prune -o -type s -print | grep -c .").await.ok();
    let counts: Vec<u32> = landed.lines().map(|count| count.parse().unwrap()).collect();
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    inside.end().await;
}

/// Each fork has its own inode of it, and a socket is known by its inode.
#[tokio::test]
async fn a_socket_of_a_sandbox_in_its_fork() {
    let engine = engine().await;
    let spec = SandboxSpec::new(cabana_sandbox::Base::Host);
    let one = Inside::of(engine.clone(), &spec).await;
    let listen = "import socket, signal
one = socket.socket(socket.AF_UNIX); one.bind('/home/user/door'); one.listen(); print('listens', flush=True); signal.pause()";
    one.root(&format!(
        "cat > /tmp/listen.py <<'EOF'\n{listen}\nEOF\nsetsid python3 /tmp/listen.py > /tmp/said 2>&1 &\n
         until grep -q listens /tmp/said; do sleep 0.05; done"
    ))
    .await
    .ok();
    let connect = "python3 -c 'import socket; socket.socket(socket.AF_UNIX).connect(\"/home/user/door\")'";
    one.root(connect).await.ok();
    let name = SnapshotId::now();
    engine.snapshot(one.sandbox.id(), name).await.unwrap();
    let base = cabana_sandbox::Base::Snapshot(name);
    let fork = engine.create(&SandboxId::random(), &SandboxSpec { base, ..passing() }).await.unwrap();
    let fork = Inside { engine: engine.clone(), sandbox: fork };
    fork.root(connect).await.refused();
    one.root(connect).await.ok();
    for inside in [fork, one] {
        engine.destroy(inside.sandbox.id()).await.unwrap();
    }
    engine.remove_snapshot(name).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn a_socket_named_in_a_root_that_cannot_be_written() {
    let inside = Inside::with(SandboxSpec { read_only_root: true, ..passing() }).await;
    let bind = |at: &str| {
        format!(
            "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.bind(\"{at}\"); print(s.getsockname())'"
        )
    };
    assert_eq!(inside.root(&bind("/tmp/s")).await.ok(), "/tmp/s");
    for closed in ["/s", "/etc/s", "/usr/s"] {
        let said = inside.root(&bind(closed)).await.refused();
        assert!(said.contains("Read-only file system"), "{said}");
    }
    inside.end().await;
}

/// What programs do with sockets that have a name, and with all others.
#[tokio::test]
async fn programs_with_named_sockets_work() {
    let inside = Inside::new().await;
    let python = "from multiprocessing import Manager, get_context
if __name__ == '__main__':
    with Manager() as manager:
        shared = manager.dict(); shared['a'] = 1
        worker = get_context('forkserver').Process(target=shared.__setitem__, args=('b', 2))
        worker.start(); worker.join(); print(dict(shared))";
    inside.user(&format!("cat > /tmp/m.py <<'EOF'\n{python}\nEOF")).await.ok();
    assert_eq!(inside.user("python3 /tmp/m.py").await.ok(), "{'a': 1, 'b': 2}");
    let sockets = "import os, socket
os.umask(0o077)
one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); one.bind('/tmp/mode')
print(oct(os.stat('/tmp/mode').st_mode), os.stat('/tmp/mode').st_uid == os.getuid())
two = socket.socket(socket.AF_UNIX); two.bind(''); print(len(two.getsockname()) > 1)
abstract = socket.socket(socket.AF_UNIX); abstract.bind(chr(0) + 'x'); abstract.listen(); print(abstract.getsockname())
for family, address in [(socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')]:
    for kind in [socket.SOCK_STREAM, socket.SOCK_DGRAM]:
        s = socket.socket(family, kind); s.bind((address, 0)); print(s.getsockname()[1] > 0)
def error(act):
    try: act()
    except OSError as error: return error.strerror
print(error(lambda: socket.socket(socket.AF_UNIX).bind('/tmp/mode')))
print(error(lambda: socket.socket(socket.AF_UNIX).bind('/tmp/absent/x')))
print(error(lambda: socket.socket(socket.AF_UNIX).bind('/etc/x')))
print(error(lambda: one.bind('/tmp/again')))
print(error(lambda: socket.socket().bind(('192.0.2.1', 80))))";
    let ran = inside.command("user", ExecSpec::argv(["python3", "-c", sockets], path("/home/user"))).await.ok();
    let expected = "0o140700 True\nTrue\nb'\\x00x'\nTrue\nTrue\nTrue\nTrue\nAddress already in use\nNo such file or directory\n\
                    Permission denied\nInvalid argument\nCannot assign requested address";
    assert_eq!(ran, expected);
    inside.end().await;
}
