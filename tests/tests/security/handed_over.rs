//! Descriptors that change hands: between sandboxes by a program of the host, and between a guest and the server.

use std::path::PathBuf;

use cabana_sandbox::{ExecSpec, Provider, Source, Status, Stdio, TermSize, View, VolumeId, Wanted};
use futures_util::StreamExt;

use crate::attacks::Relay;
use crate::inside::{Inside, marked, named, passing, path, rest, soon, unique, until};

const GIVE: &str = "import array, os, socket, sys, time
given = [os.open(name, os.O_RDONLY) for name in sys.argv[2:]]
peer = socket.socket(socket.AF_UNIX); peer.connect(sys.argv[1])
peer.sendmsg([b'g'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', given))])
print('ready', flush=True)
peer.recv(1)";

/// Looks for a file by walking up from each descriptor that it is given, and says what is there.
const TAKE: &str = "import array, os, socket, sys
peer = socket.socket(socket.AF_UNIX); peer.connect(sys.argv[1]); peer.send(b't')
_, parts, _, _ = peer.recvmsg(1, socket.CMSG_SPACE(64))
for taken in array.array('i', parts[0][2]):
    for up in range(0, 30):
        for name in sys.argv[2:]:
            try: print(os.read(os.open('../' * up + name, os.O_RDONLY, dir_fd=taken), 99).decode().strip(), flush=True)
            except OSError: pass
print('looked')";

/// One sandbox gives another its directories, by a program of the host at a socket in a volume of both. From there it goes up to the
/// giver's root, and no further.
#[tokio::test]
async fn a_directory_that_one_sandbox_hands_to_another() {
    let (dir, word) = (tempfile::tempdir().unwrap(), unique("canary"));
    std::fs::write(dir.path().join("canary"), &word).unwrap();
    let relative = dir.path().strip_prefix("/").unwrap().join("canary").to_str().unwrap().to_owned();
    let one = Inside::new().await;
    let other = Inside::of(one.engine.clone(), &passing()).await;
    let volume = VolumeId::now();
    one.engine.make_volume(volume).await.unwrap();
    let data = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("data/volumes");
    let relay = Relay::start(&data.join(volume.to_string()).join("tree/door"));
    let view = View { source: Source::Volume(volume), at: path("/workspace/both"), writable: true };
    for inside in [&one, &other] {
        inside.sandbox.update(Wanted::Views(vec![view.clone()])).await.unwrap();
    }
    one.root("chmod 777 /workspace/both && echo of-the-other > /srv/mark").await.ok();
    let words = ["python3", "-c", GIVE, "/workspace/both/door", "/srv", "/usr/bin", "/proc/self", "/dev"];
    let mut giving =
        one.sandbox.exec(ExecSpec { user: Some(named("root")), ..ExecSpec::argv(words, path("/")) }).await.unwrap();
    let _ready = giving.events.next().await;
    let words = ["python3", "-c", TAKE, "/workspace/both/door", &relative, "srv/mark"];
    let said = other.command("root", ExecSpec::argv(words, path("/"))).await.ok();
    assert!(said.contains("of-the-other"), "what was given is there: {said}");
    assert!(!said.contains(&word), "and the host's is not: {said}");
    for inside in [&one, &other] {
        inside.sandbox.update(Wanted::Views(Vec::new())).await.unwrap();
    }
    drop(relay);
    one.engine.destroy(one.sandbox.id()).await.unwrap();
    other.engine.remove_volume(volume).await.unwrap();
    other.end().await;
    // The same between two processes of the host leads to its root.
    let door = dir.path().join("door");
    let _relay = Relay::start(&door);
    let door = door.to_str().unwrap();
    let script = format!("python3 -c \"$G\" {door} /usr/bin & python3 -c \"$T\" {door} {relative}; wait");
    let both = std::process::Command::new("bash").args(["-c", &script]).env("G", GIVE).env("T", TAKE).output().unwrap();
    assert!(String::from_utf8_lossy(&both.stdout).contains(&word), "{both:?}");
}

#[tokio::test]
async fn reading_ones_own_output_back() {
    let inside = Inside::new().await;
    let script = "import os
mine = os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)
taken = 0
for number in range(2000):
    os.write(1, b'x' * 100)
    try: taken += len(os.read(mine, 100))
    except OSError: pass
os.write(2, b'%d' % taken)";
    let ran = soon("a command", inside.command("user", ExecSpec::argv(["python3", "-c", script], path("/")))).await;
    let taken: usize = ran.err.parse().unwrap();
    assert!(taken > 0, "some of it was taken back");
    assert_eq!((ran.status, ran.out.len() + taken), (Status::Code(0), 200_000), "the rest arrived, and its end");
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn an_output_pipe_of_another_size_and_kind() {
    let inside = Inside::new().await;
    let script = |how: &str| {
        format!(
            "import fcntl, os
{how}
for number in range(300): os.write(1, b'%04d' % number * 100)"
        )
    };
    let expected: String = (0..300).map(|number| format!("{number:04}").repeat(100)).collect();
    for how in [
        "pass",
        "fcntl.fcntl(1, 1031, 4096)",                 // a page
        "fcntl.fcntl(1, 1031, 1 << 20)",              // as large as one may ask for
        "fcntl.fcntl(1, fcntl.F_SETFL, os.O_DIRECT)", // in packets
        "fcntl.fcntl(1, fcntl.F_SETFL, os.O_ASYNC); fcntl.fcntl(1, fcntl.F_SETOWN, os.getpid()); import signal; signal.signal(signal.SIGIO, signal.SIG_IGN)",
    ] {
        let spec = ExecSpec::argv(["python3", "-c", &script(how)], path("/"));
        let said = soon(how, inside.command("user", spec)).await.ok();
        assert_eq!(said.len(), expected.len(), "{how}");
        assert_eq!(said, expected, "{how}");
    }
    inside.still_works().await;
    inside.end().await;
}

/// By the numbers that the call has on either machine.
fn stands_in_a_write(pid: i32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    ["1 0x1 ", "64 0x1 "].iter().any(|write| call.starts_with(write))
}

/// The client at the terminal must be able to end it.
#[tokio::test]
async fn a_terminal_that_its_own_program_stops() {
    let inside = Inside::new().await;
    let stop = "import fcntl, sys, termios, time
fcntl.ioctl(0, termios.TIOCEXCL)
print('begun', flush=True)
termios.tcflow(0, termios.TCOOFF)
sys.stdout.write('x' * 4096)
sys.stdout.flush()
time.sleep(300)";
    let mark = unique("stopped");
    let mut spec = ExecSpec::argv(["python3", "-c", stop, &mark], path("/"));
    spec.stdio = Stdio::Terminal(TermSize { cols: 80, rows: 24 });
    spec.user = Some(named("user"));
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    let first = process.events.next().await;
    assert!(matches!(first, Some(Ok(cabana_sandbox::Event::Output(_)))), "it begins: {first:?}");
    until("what it writes is held back", async || marked(&mark).into_iter().any(stands_in_a_write)).await;
    inside.still_works().await;
    soon("a new size", process.control.resize(TermSize { cols: 120, rows: 50 })).await.unwrap();
    soon("a signal", process.control.signal(9, cabana_sandbox::Target::Tree)).await.unwrap();
    let (_, status) = soon("its end", rest(process)).await;
    assert_eq!(status, Status::Signal(9));
    inside.end().await;
}

/// A listener that a guest hands out as a port: what the server gets is a connection, whatever the other side does with it.
#[tokio::test]
async fn connections_that_the_other_side_breaks_at_once() {
    let inside = Inside::new().await;
    let serve = "import socket, struct
listener = socket.create_server(('127.0.0.1', 7100))
print('listening', flush=True)
for number in range(1000):
    peer = listener.accept()[0]
    if number % 3 == 0: peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    if number % 3 == 1: peer.sendall(b'x' * 100)
    peer.close()";
    let mut process = inside.sandbox.exec(ExecSpec::argv(["python3", "-c", serve], path("/"))).await.unwrap();
    let _listening = process.events.next().await;
    let mut heard = 0;
    for _ in 0..60 {
        if let Ok(mut stream) = soon("a connection", inside.sandbox.connect(7100)).await {
            let mut bytes = Vec::new();
            let _ = soon("its end", tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut bytes)).await;
            heard += bytes.len();
        }
    }
    assert!(heard >= 100, "some were answered: {heard}");
    inside.still_works().await;
    inside.end().await;
}
