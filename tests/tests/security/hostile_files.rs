//! Things put where the server will look: they must neither hold it up, nor fill it, nor fool it.

use std::time::Duration;

use cabana_sandbox::{Alter, Code, ExecSpec, Read, SandboxPath, Search, Write, WriteMode, run, write_all};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{
    attacks::LEASE,
    inside::{Inside, PATIENCE, named, path, soon},
    lease::Lease,
};

fn body(text: &'static str) -> cabana_sandbox::Stream<bytes::Bytes> {
    stream::once(async move { Ok(text.into()) }).boxed()
}

/// Everything that opens a file, on this one: each answers soon, and none succeeds.
async fn nothing_opens(inside: &Inside, name: &str) {
    for user in ["user", "root"] {
        let files = inside.files(user);
        let at = path(name);
        assert!(soon(name, files.read(&at, Read::default())).await.is_err(), "read {name} as {user}");
        for mode in [WriteMode::Replace, WriteMode::InPlace, WriteMode::Append, WriteMode::CreateNew] {
            let written = soon(name, files.write(&at, Write::new(mode), body("x"))).await;
            assert!(written.is_err(), "write {name} as {user} ({mode:?})");
        }
        assert!(soon(name, files.list(&at)).await.is_err(), "list {name} as {user}");
        let _ = soon(name, files.stat(&at)).await;
    }
}

/// What goes over whole trees passes it by.
async fn trees_pass(inside: &Inside, dir: &str) {
    let files = inside.files("user");
    let packed = soon("packing", files.pack(&path(dir))).await;
    if let Ok(packed) = packed {
        let _ = soon("packing", packed.filter_map(|part| async { part.ok() }).count()).await;
    }
    let what = Search {
        root: path(dir),
        globs: Vec::new(),
        grep: Some("x".into()),
        ignore_files: true,
        max_hits: 10,
        budget: Duration::from_secs(5),
    };
    if let Ok(hits) = soon("searching", files.search(what)).await {
        let _ = soon("searching", hits.filter_map(|part| async { part.ok() }).count()).await;
    }
}

#[tokio::test]
async fn pipes_sockets_and_devices_where_the_server_opens_a_file() {
    let inside = Inside::new().await;
    let make = "mkdir /home/user/t && cd /home/user/t && mkfifo pipe && ln -s /dev/zero zero && ln -s /dev/tty tty && \
        ln -s pipe link && ln -s /dev/ptmx ptmx && mkfifo .gitignore && \
        python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'";
    inside.user(make).await.ok();
    let held = inside.user("timeout 0.5 cat /home/user/t/pipe").await;
    assert_eq!(held.status, cabana_sandbox::Status::Code(124), "who opens it as a file waits");
    for name in ["pipe", "zero", "tty", "link", "ptmx", "socket"] {
        nothing_opens(&inside, &format!("/home/user/t/{name}")).await;
    }
    trees_pass(&inside, "/home/user/t").await;
    soon("removing them", inside.files("user").alter(Alter::RemoveAll(path("/home/user/t")))).await.unwrap();
    inside.end().await;
}

#[tokio::test]
async fn doors_of_proc_where_the_server_opens_a_file() {
    let inside = Inside::new().await;
    let own = std::fs::read("/proc/self/environ").unwrap_or_default();
    assert!(!own.is_empty(), "the server itself would read its own");
    let ours = std::process::id();
    for text in [
        "/proc/self/exe".to_owned(),
        "/proc/self/environ".into(),
        "/proc/self/fd/0".into(),
        "/proc/thread-self/mem".into(),
        "/proc/1/exe".into(),
        "/proc/1/mem".into(),
        "/proc/1/fd/3".into(),
        "/proc/1/root/etc/passwd".into(),
        format!("/proc/{ours}/environ"),
        format!("/proc/{ours}/root/etc/passwd"),
        "/dev/fd/0".into(),
        "/dev/stdin".into(),
        "/dev/stdout".into(),
    ] {
        inside.user(&format!("rm -f /home/user/door; ln -s {text} /home/user/door")).await.ok();
        for user in ["user", "root"] {
            for way in ["/home/user/door", text.as_str()] {
                let read = soon(way, inside.read(user, way)).await;
                assert!(read.as_ref().is_none_or(Vec::is_empty), "{text} by {way} as {user}: {read:?}");
            }
        }
    }
    inside.end().await;
}

/// Who opens a leased file waits, so nobody inside is given a lease: not even on a file of its own, which may lie on a view.
#[tokio::test]
async fn a_lease_taken_inside() {
    let inside = Inside::new().await;
    inside.user("echo x > /home/user/own").await.ok();
    let refused = inside.attack("user", &LEASE, &["/home/user/own"]).await;
    assert_eq!((refused.status, refused.out.trim()), (cabana_sandbox::Status::Code(1), "/home/user/own EPERM"));
    // The control: a process of the host is given one on that very file.
    drop(Lease::on(&inside, &["/home/user/own"]).await);
    inside.end().await;
}

#[tokio::test]
async fn a_lease_on_a_file_that_the_server_opens() {
    let inside = Inside::new().await;
    inside.user("mkdir /home/user/t && echo x > /home/user/t/leased").await.ok();
    let _lease = Lease::on(&inside, &["/home/user/t/leased"]).await;
    let held = inside.user("timeout 0.5 cat /home/user/t/leased").await;
    assert_eq!(held.status, cabana_sandbox::Status::Code(124), "who opens it waits");
    for user in ["user", "root"] {
        let files = inside.files(user);
        let at = path("/home/user/t/leased");
        let read = soon("a leased file", files.read(&at, Read::default())).await;
        assert_eq!(read.err().map(|error| error.code()), Some(Code::FileBusy), "as {user}");
        for mode in [WriteMode::InPlace, WriteMode::Append] {
            let written = soon("a leased file", files.write(&at, Write::new(mode), body("y"))).await;
            assert_eq!(written.err().map(|error| error.code()), Some(Code::FileBusy), "as {user} ({mode:?})");
        }
        let _ = soon("a leased file", files.alter(Alter::SetMode(at.clone(), 0o600))).await;
    }
    trees_pass(&inside, "/home/user/t").await;
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn a_lease_on_the_file_of_users() {
    let inside = Inside::new().await;
    let _lease = Lease::on(&inside, &["/etc/passwd", "/etc/group"]).await;
    let waits = ExecSpec::shell("timeout 0.5 cat /etc/passwd", SandboxPath::root());
    if let Ok(held) = soon("a command", run(&*inside.sandbox, waits, 100)).await {
        assert_eq!(held.exit.status, cabana_sandbox::Status::Code(124), "who opens it waits");
    }
    // It must be read again, since a lease needs a copy of its own: told soon, whatever is told.
    let spec = ExecSpec::shell("true", SandboxPath::root());
    let _ = soon("a command", run(&*inside.sandbox, spec, 100)).await;
    let _ = soon("a file", inside.read("user", "/etc/hostname")).await;
    soon("the end", inside.end()).await;
}

#[tokio::test]
async fn a_file_of_users_that_lies() {
    let inside = Inside::new().await;
    let line = |name: &str, uid: &str| format!("{name}:x:{uid}:{uid}::/:/bin/sh");
    let users = [
        line("root", "0"),
        line("user", "1000"),
        line("first", "65536"),
        line("second", "1879048192"),
        line("third", "4294967295"),
        line("fourth", "-1"),
        line("fifth", "4294967296"),
        line("sixth", "0x0"),
        line("alias", "0"),
    ];
    inside.root(&format!("printf '%s\\n' '{}' > /etc/passwd", users.join("' '"))).await.ok();
    for name in ["first", "second", "third", "fourth", "fifth", "sixth", "65536", "4294967295"] {
        let mut spec = ExecSpec::shell("id -u", SandboxPath::root());
        spec.user = cabana_sandbox::User::new(name).ok();
        if spec.user.is_none() {
            continue;
        }
        let refused = run(&*inside.sandbox, spec, 100).await.err().map(|error| error.code());
        assert_eq!(refused, Some(Code::UnknownUser), "{name}");
        let read = inside.files(name).stat(&path("/")).await.err().map(|error| error.code());
        assert_eq!(read, Some(Code::UnknownUser), "{name}");
    }
    // Another name of root inside is root inside, and no more than that.
    let caps = inside.command("alias", ExecSpec::shell("grep CapEff /proc/self/status", path("/"))).await.ok();
    assert!(caps.ends_with("a00404fb"), "{caps}");
    assert_eq!(inside.read("alias", "/proc/slabinfo").await, None);
    inside.end().await;
}

#[tokio::test]
async fn a_file_of_users_that_is_none() {
    let ways = [
        "mkfifo /etc/passwd",
        "mkdir /etc/passwd",
        "ln -s /dev/zero /etc/passwd",
        "ln -s /proc/1/environ /etc/passwd",
        "ln -s passwd /etc/passwd",
        "truncate -s 64T /etc/passwd || truncate -s 8T /etc/passwd",
        "head -c 4000000 /dev/zero | tr '\\0' 'a' > /etc/passwd",
        "yes 'a:x:1:1::/:/bin/sh' | head -n 300000 > /etc/passwd",
        "ln -s /etc /x; mv /etc /e; ln -s /e /etc",
    ];
    let inside = Inside::new().await;
    inside.root("cp /etc/passwd /tmp/good").await.ok();
    for way in ways {
        // By a process that started before: afterwards there may be no user to start one.
        let script = format!(
            "rm -rf /etc/passwd; {way}; echo done; read -r; [ -d /e ] && rm /etc && mv /e /etc; \
            rm -rf /etc/passwd; cp /tmp/good /etc/passwd"
        );
        let mut spec = ExecSpec::shell(script, path("/"));
        spec.user = Some(named("root"));
        spec.stdio = cabana_sandbox::Stdio::InputOutput;
        let mut process = inside.sandbox.exec(spec).await.unwrap();
        let mut stdin = process.stdin.take().unwrap();
        let _done = process.events.next().await;
        let _ = soon(way, inside.files("user").stat(&path("/tmp"))).await;
        let _ = soon(way, run(&*inside.sandbox, ExecSpec::shell("true", path("/")), 100)).await;
        let _ = soon(way, inside.sandbox.usage()).await;
        tokio::io::AsyncWriteExt::write_all(&mut stdin, b"\n").await.unwrap();
        let (_, status) = soon(way, crate::inside::rest(process)).await;
        assert_eq!(status, cabana_sandbox::Status::Code(0), "{way}");
        inside.still_works().await;
    }
    inside.end().await;
}

/// Makes it below a directory that is there.
async fn deep(inside: &Inside, at: &str) {
    let script = format!(
        "import os
os.chdir('{at}')
for level in range(10000):
    os.mkdir('d'); os.chdir('d')
print('made')"
    );
    let spec = ExecSpec::argv(["/usr/bin/python3", "-c", &script], path("/"));
    assert_eq!(inside.command("user", spec).await.ok(), "made");
}

#[tokio::test]
async fn a_directory_ten_thousand_levels_deep() {
    let inside = Inside::new().await;
    inside.user("mkdir /dev/shm/deep").await.ok();
    deep(&inside, "/dev/shm/deep").await;
    let by_path = "python3 -c 'import os; os.stat(\"/dev/shm/deep\" + \"/d\" * 3000)'";
    assert!(inside.user(by_path).await.refused().contains("File name too long"), "no path leads there");
    let files = inside.files("user");
    let long = format!("/dev/shm/deep{}", "/d".repeat(3000));
    if let Ok(long) = long.parse::<SandboxPath>() {
        let _ = soon("a long path", files.stat(&long)).await;
    }
    trees_pass(&inside, "/dev/shm/deep").await;
    soon("removing it", files.alter(Alter::RemoveAll(path("/dev/shm/deep")))).await.unwrap();
    inside.end().await;
}

#[tokio::test]
async fn a_sandbox_that_is_ten_thousand_levels_deep() {
    let inside = Inside::new().await;
    deep(&inside, "/home/user").await;
    let usage = tokio::time::timeout(PATIENCE, inside.sandbox.usage()).await.expect("measured in time");
    assert!(usage.is_ok(), "{usage:?}");
    tokio::time::timeout(PATIENCE, inside.end()).await.expect("removed in time");
}

#[tokio::test]
async fn times_that_no_calendar_has() {
    let inside = Inside::new().await;
    let script = "import os
os.mkdir('/dev/shm/t'); os.chdir('/dev/shm/t')
for number, when in enumerate([2**63 - 1, -2**63, 2**62, -2**62, -1, 253402300800]):
    os.close(os.open('f%d' % number, os.O_CREAT | os.O_WRONLY))
    os.utime('f%d' % number, (when, when))
os.utime('.', (2**63 - 1, -2**63))";
    inside.command("user", ExecSpec::argv(["/usr/bin/python3", "-c", script], path("/"))).await.ok();
    assert!(inside.user("stat -c %Y /dev/shm/t/f0").await.ok().len() > 12, "the file has such a time");
    let files = inside.files("user");
    let batches: Vec<_> = files.list(&path("/dev/shm/t")).await.unwrap().try_collect().await.unwrap();
    assert_eq!(batches.concat().len(), 6);
    for number in 0..6 {
        let at = path(&format!("/dev/shm/t/f{number}"));
        files.stat(&at).await.unwrap();
        files.read(&at, Read::default()).await.map(drop).unwrap();
    }
    trees_pass(&inside, "/dev/shm/t").await;
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn a_directory_with_a_great_many_entries() {
    const MANY: usize = 50_000;
    let inside = Inside::new().await;
    let script = format!(
        "import os
os.mkdir('/dev/shm/many'); os.chdir('/dev/shm/many')
for number in range({MANY}): os.close(os.open('%d' % number, os.O_CREAT | os.O_WRONLY))
os.symlink('/dev/shm/many', '/home/user/many')"
    );
    inside.command("user", ExecSpec::argv(["/usr/bin/python3", "-c", &script], path("/"))).await.ok();
    let mut listing = inside.files("user").list(&path("/home/user/many")).await.unwrap();
    let mut seen = 0;
    while let Some(batch) = listing.try_next().await.unwrap() {
        assert!(batch.len() <= 4096, "a batch is bounded: {}", batch.len());
        seen += batch.len();
    }
    assert_eq!(seen, MANY);
    inside.end().await;
}

#[tokio::test]
async fn names_that_are_no_text() {
    let inside = Inside::new().await;
    let script = r"import os
os.mkdir('/home/user/t'); os.chdir('/home/user/t')
for name in [b'new\nline', b'\xff\xfe', b'\x1b[31m', b'-rf', b' ', b'..x', b'a' * 255, b'\r', b'*', b'$(touch x)']:
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))";
    inside.command("user", ExecSpec::argv(["/usr/bin/python3", "-c", script], path("/"))).await.ok();
    let files = inside.files("user");
    let batches: Vec<_> = files.list(&path("/home/user/t")).await.unwrap().try_collect().await.unwrap();
    let all = batches.concat();
    assert_eq!(all.len(), 10);
    trees_pass(&inside, "/home/user/t").await;
    for info in all {
        files.alter(Alter::Remove(info.path)).await.unwrap();
    }
    inside.end().await;
}

#[tokio::test]
async fn a_file_that_says_it_has_eight_exbibytes() {
    let inside = Inside::new().await;
    let script = "import os
os.mkdir('/dev/shm/t')
fd = os.open('/dev/shm/t/huge', os.O_CREAT | os.O_WRONLY)
os.ftruncate(fd, 2**63 - 1 - 2**20)";
    inside.command("user", ExecSpec::argv(["/usr/bin/python3", "-c", script], path("/"))).await.ok();
    assert!(inside.user("stat -c %s /dev/shm/t/huge").await.ok().len() > 18, "that is what it says");
    let files = inside.files("user");
    let at = path("/dev/shm/t/huge");
    let whole = soon("all of it", files.read(&at, Read::default())).await;
    assert_eq!(whole.err().map(|error| error.code()), Some(Code::TooLarge));
    let what = Read { from: 1 << 62, len: Some(1000), ..Read::default() };
    let (_, part) = soon("a part of it", files.read(&at, what)).await.unwrap();
    let got: usize = part.map_ok(|part| part.len()).try_fold(0, |sum, len| async move { Ok(sum + len) }).await.unwrap();
    assert_eq!(got, 1000);
    // Whoever packs it gets it piece by piece, and may stop.
    if let Ok(mut packed) = soon("packing it", files.pack(&path("/dev/shm/t"))).await {
        for _ in 0..8 {
            let Some(Ok(part)) = soon("packing it", packed.next()).await else { break };
            assert!(part.len() <= 16 << 20, "a piece is bounded: {}", part.len());
        }
    }
    let _ = soon("copying it", files.alter(Alter::Rename(at, path("/dev/shm/t/other")))).await;
    let usage = soon("measuring", inside.sandbox.usage()).await.unwrap();
    assert!(usage.disk < 1 << 40, "{usage:?}");
    soon("the end", inside.end()).await;
}

#[tokio::test]
async fn a_file_that_never_stops_growing() {
    let inside = Inside::new().await;
    let grow = "cd /dev/shm; echo x > grows; echo begun; while true; do head -c 65536 /dev/zero >> grows; done";
    let mut spec = ExecSpec::shell(grow, path("/"));
    spec.timeout = Some(Duration::from_secs(20));
    let mut process = inside.sandbox.exec(spec).await.unwrap();
    let _begun = process.events.next().await;
    let grows = async || inside.files("user").stat(&path("/dev/shm/grows")).await.unwrap().size > 65_536;
    crate::inside::until("it grows", grows).await;
    let read = soon("a file that grows", inside.read("user", "/dev/shm/grows")).await;
    assert!(read.is_some(), "read to where it was when it was opened");
    process.control.signal(9, cabana_sandbox::Target::Tree).await.unwrap();
    inside.end().await;
}

#[tokio::test]
async fn links_in_circles() {
    let inside = Inside::new().await;
    let make = "mkdir /home/user/t && cd /home/user/t && ln -s b a && ln -s a b && ln -s . here && ln -s here/here/here deep && \
        for n in $(seq 60); do ln -s l$((n+1)) l$n; done; ln -s / root";
    inside.user(make).await.ok();
    assert!(inside.user("cat /home/user/t/a").await.refused().contains("Too many levels"));
    let files = inside.files("user");
    for name in ["a", "l1"] {
        let at = path(&format!("/home/user/t/{name}"));
        assert!(soon(name, files.read(&at, Read::default())).await.is_err());
        assert!(soon(name, write_all(&*files, &at, "x")).await.is_err(), "{name}");
    }
    trees_pass(&inside, "/home/user/t").await;
    soon("removing them", files.alter(Alter::RemoveAll(path("/home/user/t")))).await.unwrap();
    inside.user("test -x /bin/sh").await.ok(); // the link to the root was removed, and not followed
    inside.end().await;
}
