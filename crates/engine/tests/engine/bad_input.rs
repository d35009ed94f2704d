//! What is asked wrongly, and what cannot be done: each a clear error, at once, and nothing half made.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use cabana_engine::{Engine, TemplateSource};
use cabana_sandbox::{
    Base, Code, Error, ExecSpec, Files, NetworkPolicy, Overrides, PathError, Provider, Read, Result, SandboxId,
    SandboxPath, SandboxSpec, Source, Status, Stream, View, Wanted, Write, WriteMode, read_all, run, write_all,
};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::{
    inside::{Inside, PATIENCE, host, named, passing, path, shell, tiny_root},
    stage,
};

#[test]
fn paths_that_are_none_are_refused_by_their_type() {
    let rows: [(&[u8], PathError); 9] = [
        (b"", PathError::Relative),
        (b"etc/passwd", PathError::Relative),
        (b"../etc", PathError::Relative),
        (b"~/x", PathError::Relative),
        (b"/a\0b", PathError::Nul),
        (b"/..", PathError::Odd),
        (b"/a/../b", PathError::Odd),
        (b"/a/./b", PathError::Odd),
        (b"/a//b", PathError::Odd),
    ];
    for (bad, error) in rows {
        assert_eq!(SandboxPath::new(bad), Err(error), "{}", String::from_utf8_lossy(bad));
        assert_eq!(Error::from(error).code(), Code::InvalidPath);
    }
}

/// The error of a call that must come at once.
async fn refused<T>(call: impl Future<Output = Result<T>>) -> Code {
    let answer = tokio::time::timeout(Duration::from_secs(10), call).await.expect("an answer, and soon");
    answer.err().expect("it is refused").code()
}

fn body(content: &'static [u8]) -> Stream<Bytes> {
    stream::once(async move { Ok(Bytes::from_static(content)) }).boxed()
}

#[tokio::test]
async fn pipes_sockets_and_devices_are_not_opened() {
    let inside = Inside::new().await;
    let make = "import os, socket
os.chdir('/home/user')
os.mkfifo('pipe')
socket.socket(socket.AF_UNIX).bind('socket')
os.symlink('pipe', 'link')";
    inside.python("user", make).await.ok();
    let modes = [WriteMode::InPlace, WriteMode::Append, WriteMode::Replace];
    // Of the terminals' own file system, which the kernel makes up, nothing is opened at all.
    let (device, made_up) = (Code::NotRegular, Code::PermissionDenied);
    for (name, expected) in [
        ("/home/user/pipe", device),
        ("/home/user/socket", device),
        ("/home/user/link", device),
        ("/dev/zero", device),
        ("/dev/tty", device),
        ("/dev/ptmx", made_up),
    ] {
        for user in ["user", "root"] {
            let files = inside.files(user);
            assert_eq!(refused(files.read(&path(name), Read::default())).await, expected, "{name}");
            for mode in modes {
                let code = refused(files.write(&path(name), Write::new(mode), body(b"x"))).await;
                assert_eq!(code, expected, "{name} {mode:?} as {user}");
            }
        }
    }
    assert_eq!(inside.user("stat -c %F /home/user/pipe /home/user/socket").await.ok(), "fifo\nsocket");
    inside.end().await;
}

/// A lease of a process of the host on a file inside, since no guest is given one. Not given up when it is asked for.
struct Lease(Child);

impl Lease {
    async fn on(inside: &Inside, name: &str) -> Self {
        const HOLD: &str = "import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print('held', flush=True)
time.sleep(600)";
        let namespace = inside.root("readlink /proc/self/ns/pid").await.ok();
        let mut processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let is_inside =
            |process: &PathBuf| fs::read_link(process.join("ns/pid")).is_ok_and(|own| own == Path::new(&namespace));
        let root = processes.find(is_inside).expect("its init").join("root");
        let file = root.join(name.trim_start_matches('/'));
        let mut holder =
            std::process::Command::new("python3").args(["-c", HOLD]).arg(file).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "held\n");
        Self(holder)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_leased_file_is_busy_and_nobody_waits_for_it() {
    let inside = Inside::new().await;
    let name = path("/home/user/leased");
    let files = inside.files("user");
    write_all(&*files, &name, "content").await.unwrap();
    let lease = Lease::on(&inside, "/home/user/leased").await;

    assert_eq!(refused(files.read(&name, Read::default())).await, Code::FileBusy);
    assert_eq!(refused(files.write(&name, Write::new(WriteMode::InPlace), body(b"x"))).await, Code::FileBusy);
    assert_eq!(refused(files.write(&name, Write::new(WriteMode::Append), body(b"x"))).await, Code::FileBusy);
    files.stat(&name).await.unwrap();
    drop(lease);
    assert_eq!(read_all(&*files, &name, 100).await.unwrap(), "content");
    inside.end().await;
}

#[tokio::test]
async fn a_leased_program_holds_up_nobody_else() {
    let inside = Inside::new().await;
    inside.user("cp /usr/bin/true /home/user/program").await.ok();
    let lease = Lease::on(&inside, "/home/user/program").await;

    let began = Instant::now();
    let waiting = run(&*inside.sandbox, ExecSpec::argv(["/home/user/program"], SandboxPath::root()), 100);
    let meanwhile = async {
        for _ in 0..20 {
            assert_eq!(inside.user("echo goes on").await.ok(), "goes on");
        }
        write_all(&*inside.files("user"), &path("/home/user/x"), "x").await.unwrap();
        let took = began.elapsed();
        drop(lease);
        took
    };
    let (outcome, took) = tokio::join!(waiting, meanwhile);
    assert!(took < Duration::from_secs(20), "others waited: {took:?}");
    assert_eq!(outcome.unwrap().exit.status, Status::Code(0), "it runs once the lease is gone");
    inside.end().await;
}

#[tokio::test]
async fn a_timeout_ends_a_command_that_waits_for_a_leased_program() {
    let inside = Inside::new().await;
    inside.user("cp /usr/bin/true /home/user/program").await.ok();
    let _lease = Lease::on(&inside, "/home/user/program").await;
    let mut spec = ExecSpec::argv(["/home/user/program"], SandboxPath::root());
    spec.timeout = Some(Duration::from_millis(300));
    let began = Instant::now();
    // Whether it counts as begun or not: the caller hears of it in time, and the sandbox goes on.
    let outcome = tokio::time::timeout(Duration::from_secs(15), run(&*inside.sandbox, spec, 100)).await;
    match outcome.expect("an end in time") {
        Ok(outcome) => assert_eq!(outcome.exit.status, Status::TimedOut),
        Err(error) => assert_eq!(error.code(), Code::TimedOut, "{error}"),
    }
    assert!(began.elapsed() < Duration::from_secs(15));
    assert_eq!(inside.user("echo goes on").await.ok(), "goes on");
    inside.end().await;
}

#[tokio::test]
async fn a_command_that_no_kernel_takes_is_refused_and_the_sandbox_lives() {
    let inside = Inside::new().await;
    // More than one argument may have; more than init takes at all.
    for length in [200_000, 9 << 20] {
        let spec = ExecSpec::argv(["true".to_owned(), "x".repeat(length)], path("/"));
        let again = ExecSpec { command: cabana_sandbox::Command::Shell("echo alive".into()), ..spec.clone() };
        assert_eq!(refused(inside.sandbox.exec(spec)).await, Code::BadRequest, "{length} bytes");
        // Nothing ran, so the id was not used.
        let done = run(&*inside.sandbox, again, 100).await.unwrap();
        assert_eq!(done.stdout.head, b"alive\n", "after {length} bytes");
    }
    inside.end().await;
}

/// Longer than a name may be, than a path, than an argument.
#[tokio::test]
async fn a_program_whose_name_is_too_long_is_no_fault_of_ours() {
    let inside = Inside::new().await;
    for length in [300, 5000, 200_000] {
        for before in ["", "/", "./", "/usr/bin/"] {
            let program = format!("{before}{}", "x".repeat(length));
            let code = refused(inside.sandbox.exec(ExecSpec::argv([program], path("/")))).await;
            assert!(
                [Code::ProgramNotFound, Code::BadRequest].contains(&code),
                "{length} bytes after {before:?}: {code}"
            );
        }
    }
    inside.user("true").await.ok();
    inside.end().await;
}

#[tokio::test]
async fn unknown_users_and_missing_directories_are_named() {
    let inside = Inside::new().await;
    let exec = |user: &str, cwd: &str| {
        let spec = ExecSpec { user: Some(named(user)), ..ExecSpec::shell("true", path(cwd)) };
        inside.sandbox.exec(spec)
    };
    assert_eq!(refused(exec("nosuchone", "/")).await, Code::UnknownUser);
    assert_eq!(refused(exec("70000", "/")).await, Code::UnknownUser, "not one of the sandbox's ids");
    assert_eq!(refused(exec("4294967295", "/")).await, Code::UnknownUser);
    assert_eq!(refused(exec("user", "/no/such/place")).await, Code::WorkdirNotFound);
    assert_eq!(refused(exec("user", "/etc/passwd")).await, Code::WorkdirNotFound);
    assert_eq!(refused(exec("user", "/root")).await, Code::WorkdirNotFound, "it may not enter it");
    assert_eq!(refused(inside.files("nosuchone").stat(&path("/"))).await, Code::UnknownUser);
    let none = ExecSpec::argv(["no-such-program"], SandboxPath::root());
    assert_eq!(refused(inside.sandbox.exec(none)).await, Code::ProgramNotFound);
    inside.end().await;
}

#[tokio::test]
async fn a_base_that_is_not_there_is_named_and_nothing_is_made() {
    let engine = stage::engine().await;
    let id = SandboxId::random();
    let layer = "ab".repeat(32).parse().unwrap();
    let rows = [
        (Base::Named("no-such-template".into()), Code::TemplateNotFound),
        (Base::Named("../../etc/passwd".into()), Code::BadRequest),
        (Base::Layers(vec![layer]), Code::BadRequest),
        (Base::Layers(vec![]), Code::BadRequest),
    ];
    for (base, code) in rows {
        let error = engine.create(&id, &SandboxSpec::new(base.clone())).await.err().expect("it is refused");
        assert_eq!(error.code(), code, "{base:?}: {error}");
        assert!(matches!(engine.attach(&id).await.unwrap(), cabana_sandbox::Found::Absent));
    }
    assert_eq!(refused(engine.start(&id)).await, Code::SandboxNotFound);
    engine.close().await;
}

fn shown(source: impl Into<PathBuf>, at: &str) -> SandboxSpec {
    let view = View { source: Source::Host(source.into()), at: path(at), writable: true };
    SandboxSpec { views: vec![view], ..passing() }
}

/// What a create says that must be refused, and that leaves nothing.
async fn refusal(engine: &Engine, spec: &SandboxSpec) -> String {
    let id = SandboxId::random();
    let error = engine.create(&id, spec).await.err().unwrap_or_else(|| panic!("{spec:?} is not refused"));
    assert_eq!(error.code(), Code::BadRequest, "{error}");
    assert!(matches!(engine.attach(&id).await.unwrap(), cabana_sandbox::Found::Absent));
    error.to_string()
}

#[tokio::test]
async fn the_system_and_the_files_of_other_sandboxes_are_never_shown() {
    let engine = stage::engine().await;
    let (data, dir) = (stage::shared_data(), tempfile::tempdir().unwrap());
    let above = data.parent().unwrap().to_owned();
    for system in
        ["/", "/proc", "/proc/1", "/sys", "/dev", "/dev/null", "/run", "/etc", "/etc/passwd", "/usr", "/home", "/var"]
    {
        let said = refusal(&engine, &shown(system, "/workspace/seen")).await;
        assert!(said.contains("views: /"), "{system}: {said}");
        // Neither through a link, nor the long way round.
        let link = dir.path().join(system.replace('/', "_"));
        std::os::unix::fs::symlink(system, &link).unwrap();
        refusal(&engine, &shown(link, "/workspace/seen")).await;
        refusal(&engine, &shown(format!("/tmp/..{system}"), "/workspace/seen")).await;
    }
    let link = dir.path().join("data");
    std::os::unix::fs::symlink(&data, &link).unwrap();
    for ours in [data.clone(), data.join("sandboxes"), data.join("layers"), above, link.clone(), link.join("templates")]
    {
        let said = refusal(&engine, &shown(&ours, "/workspace/seen")).await;
        assert!(said.contains("data directory"), "{}: {said}", ours.display());
    }
    // Under another name, which only the kernel sees through.
    let elsewhere = dir.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    host("mount", &["--bind", data.to_str().unwrap(), elsewhere.to_str().unwrap()]);
    for ours in [elsewhere.clone(), elsewhere.join("layers")] {
        let said = refusal(&engine, &shown(&ours, "/workspace/seen")).await;
        assert!(said.contains("data directory"), "{}: {said}", ours.display());
    }
    host("umount", &[elsewhere.to_str().unwrap()]);
    for odd in ["", "relative", "../x", "/no/such/place"] {
        refusal(&engine, &shown(odd, "/workspace/seen")).await;
    }
    let _listener = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    refusal(&engine, &shown(dir.path().join("socket"), "/workspace/seen")).await;
    engine.close().await;
}

#[tokio::test]
async fn no_view_hides_what_a_sandbox_needs() {
    let engine = stage::engine().await;
    let dir = tempfile::tempdir().unwrap();
    let needed = [
        "/",
        "/proc",
        "/proc/self",
        "/sys",
        "/sys/fs",
        "/dev",
        "/dev/shm",
        "/etc",
        "/etc/passwd",
        "/etc/group",
        "/usr",
        "/bin",
    ];
    for at in needed {
        let said = refusal(&engine, &shown(dir.path(), at)).await;
        assert!(said.contains("would hide"), "{at}: {said}");
    }
    let mut twice = shown(dir.path(), "/workspace/seen");
    twice.views.push(twice.views[0].clone());
    assert!(refusal(&engine, &twice).await.contains("two views"));
    let layer = Source::Layer("ab".repeat(32).parse().unwrap());
    for (writable, why) in [(true, "cannot be written"), (false, "not in the store")] {
        let view = View { source: layer.clone(), at: path("/workspace/layer"), writable };
        let said = refusal(&engine, &SandboxSpec { views: vec![view], ..passing() }).await;
        assert!(said.contains(why), "{said}");
    }
    engine.close().await;
}

#[tokio::test]
async fn a_view_whose_source_has_become_a_link_to_the_system_is_refused_at_the_next_start() {
    let engine = stage::engine().await;
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("project");
    fs::create_dir(&source).unwrap();
    let spec = SandboxSpec { lifetime: cabana_sandbox::Lifetime::Persistent, ..shown(&source, "/workspace/seen") };
    let id = SandboxId::random();
    engine.create(&id, &spec).await.unwrap();
    engine.stop(&id).await.unwrap();
    fs::remove_dir(&source).unwrap();
    std::os::unix::fs::symlink("/etc", &source).unwrap();
    let error = engine.start(&id).await.err().expect("it is refused");
    assert!(error.to_string().contains("part of the system"), "{error}");
    assert!(matches!(engine.attach(&id).await.unwrap(), cabana_sandbox::Found::Stopped));
    fs::remove_file(&source).unwrap();
    fs::create_dir(&source).unwrap();
    engine.start(&id).await.unwrap();
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn rules_of_a_network_that_name_nothing_are_refused_at_create_and_at_run_time() {
    let inside = Inside::new().await;
    for rule in [
        "",
        " ",
        "http://example.org",
        "example.org/path",
        "exa mple.org",
        "*",
        "*.*.org",
        "10.0.0.0/33",
        "example.org:0",
        "example.org:99999",
        "[::1",
        "user@example.org",
        "1.2.3",
    ] {
        let network = NetworkPolicy::Allow(vec!["example.org".into(), rule.into()]);
        let said = refusal(&inside.engine, &SandboxSpec { network: network.clone(), ..passing() }).await;
        assert!(said.starts_with("network:"), "{rule:?}: {said}");
        let refused = inside.sandbox.update(Wanted::Network(network)).await.unwrap_err();
        assert_eq!(refused.code(), Code::BadRequest, "{rule:?}: {refused}");
    }
    assert_eq!(inside.user("echo lives").await.ok(), "lives");
    inside.end().await;
}

#[tokio::test]
async fn a_layer_that_vanished_is_named_at_create_and_at_start_and_nothing_changes() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(stage::config(dir.path().join("data"))).await.unwrap();
    tiny_root(&dir.path().join("root"));
    let source = TemplateSource::Directory(dir.path().join("root"));
    let template = engine.templates().add("tiny", &source, &Overrides::default(), &mut |_| {}).unwrap();
    let named = SandboxSpec::new(Base::Named("tiny".into()));
    let id = SandboxId::random();
    let sandbox = engine.create(&id, &named).await.unwrap();
    write_all(&*sandbox.files(None), &path("/home/user/mine"), "mine").await.unwrap();
    engine.stop(&id).await.unwrap();

    let lost = template.layers[0].to_string();
    let (there, away) = (dir.path().join("data/layers").join(&lost), dir.path().join("away"));
    fs::rename(&there, &away).unwrap();
    let listing = || stage::entries_in(&dir.path().join("data/sandboxes")).len();
    let before = listing();
    let error = engine.start(&id).await.err().expect("it is refused");
    assert!(error.code() == Code::BadRequest && error.to_string().contains(&lost), "{error}");
    assert!(matches!(engine.attach(&id).await.unwrap(), cabana_sandbox::Found::Stopped));
    let rows =
        [(named, Code::TemplateInvalid), (SandboxSpec::new(Base::Layers(template.layers.clone())), Code::BadRequest)];
    for (spec, code) in rows {
        let error = engine.create(&SandboxId::random(), &spec).await.err().expect("it is refused");
        assert!(error.code() == code && error.to_string().contains(&lost), "{error}");
    }
    assert_eq!(listing(), before);
    // What came back is as if nothing had been.
    fs::rename(&away, &there).unwrap();
    let sandbox = engine.start(&id).await.unwrap();
    assert_eq!(read_all(&*sandbox.files(None), &path("/home/user/mine"), 100).await.unwrap(), "mine");
    engine.close().await;
}

#[tokio::test]
async fn a_template_that_is_gone_changes_nothing_for_its_sandboxes() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(stage::config(dir.path().join("data"))).await.unwrap();
    tiny_root(&dir.path().join("root"));
    let source = TemplateSource::Directory(dir.path().join("root"));
    engine.templates().add("tiny", &source, &Overrides::default(), &mut |_| {}).unwrap();
    let (id, spec) = (SandboxId::random(), SandboxSpec::new(Base::Named("tiny".into())));
    engine.create(&id, &spec).await.unwrap();
    engine.stop(&id).await.unwrap();
    engine.templates().rm("tiny", &|_| false).unwrap();
    assert_eq!(engine.remove_unused_layers().unwrap(), 0, "the sandbox stands on them");
    assert_eq!(refused(engine.create(&SandboxId::random(), &spec)).await, Code::TemplateNotFound);
    let sandbox = engine.start(&id).await.unwrap();
    assert_eq!(shell(&*sandbox, "user", "echo works").await.ok(), "works");
    engine.close().await;
}

#[tokio::test]
async fn a_host_base_whose_layers_vanished_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(stage::config(dir.path().join("data"))).await.unwrap();
    let first = engine.create(&SandboxId::random(), &passing()).await.unwrap();
    engine.destroy(first.id()).await.unwrap();
    for layer in fs::read_dir(dir.path().join("data/layers")).unwrap() {
        fs::remove_dir_all(layer.unwrap().path()).unwrap();
    }
    let again = engine.create(&SandboxId::random(), &passing()).await.unwrap();
    assert_eq!(shell(&*again, "user", "echo works").await.ok(), "works");
    engine.close().await;
}

/// A file system in memory on the host, for as long as the test lasts.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        host("mount", &["-t", "tmpfs", "-o", options, "cabana-test", dir.path().to_str().unwrap()]);
        Self(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

fn open_code(opened: std::result::Result<std::sync::Arc<Engine>, cabana_engine::OpenError>) -> Code {
    opened.err().expect("it is refused").code()
}

#[tokio::test]
async fn a_data_directory_that_is_not_ours_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| Engine::open(stage::config(dir.path().join(name)));
    fs::create_dir(dir.path().join("full")).unwrap();
    fs::write(dir.path().join("full/precious"), "x").unwrap();
    assert_eq!(open_code(open("full").await), Code::DataDirNotOurs);
    assert_eq!(fs::read_dir(dir.path().join("full")).unwrap().count(), 1);

    fs::create_dir(dir.path().join("foreign")).unwrap();
    chown(dir.path().join("foreign"), Some(4321), Some(4321)).unwrap();
    assert_eq!(open_code(open("foreign").await), Code::DataDirNotOurs);
    assert_eq!(fs::read_dir(dir.path().join("foreign")).unwrap().count(), 0);

    fs::write(dir.path().join("file"), "x").unwrap();
    assert_eq!(open_code(open("file").await), Code::DataDirNotOurs);
    assert_eq!(open_code(open("file/below").await), Code::DataDirNotOurs);

    open("newer").await.unwrap().close().await;
    fs::write(dir.path().join("newer/version"), "99\n").unwrap();
    let error = open("newer").await.err().unwrap();
    assert_eq!(error.code(), Code::DataDirVersion);
    assert!(error.to_string().contains("99"), "{error}");
}

#[tokio::test]
async fn a_read_only_data_directory_is_refused() {
    let mounted = Mounted::new("ro");
    assert_eq!(open_code(Engine::open(stage::config(mounted.path().to_owned())).await), Code::DataDirReadOnly);
    assert_eq!(open_code(Engine::open(stage::config(mounted.path().join("new"))).await), Code::DataDirReadOnly);
}

/// Zeros without an end that matters.
fn zeros(count: usize) -> Stream<Bytes> {
    let chunk = Bytes::from(vec![0; 256 * 1024]);
    stream::iter((0..count / chunk.len()).map(move |_| Ok(chunk.clone()))).boxed()
}

async fn names_in(files: &dyn Files, dir: &str) -> Vec<String> {
    let batches: Vec<_> = files.list(&path(dir)).await.unwrap().try_collect().await.unwrap();
    batches.concat().iter().map(|entry| entry.path.to_string()).collect()
}

#[tokio::test]
async fn a_full_disk_is_said_and_nothing_half_made_is_left() {
    let mounted = Mounted::new("size=48m,mode=700");
    let source = tempfile::tempdir().unwrap();
    tiny_root(source.path());
    let engine = Engine::open(stage::config(mounted.path().to_owned())).await.unwrap();
    let template = TemplateSource::Directory(source.path().to_owned());
    engine.templates().add("tiny", &template, &Overrides::default(), &mut |_| {}).unwrap();
    let spec = SandboxSpec::new(Base::Named("tiny".into()));
    let id = SandboxId::random();
    let sandbox = engine.create(&id, &spec).await.unwrap();
    let files = sandbox.files(None);
    write_all(&*files, &path("/home/user/old"), "old").await.unwrap();

    for mode in [WriteMode::Replace, WriteMode::CreateNew] {
        let big = path("/home/user/big");
        assert_eq!(refused(files.write(&big, Write::new(mode), zeros(128 << 20))).await, Code::NoSpace, "{mode:?}");
    }
    let how = Write::new(WriteMode::Replace);
    assert_eq!(refused(files.write(&path("/home/user/old"), how, zeros(128 << 20))).await, Code::NoSpace);
    assert_eq!(names_in(&*files, "/home/user").await, ["/home/user/old"]);
    assert_eq!(read_all(&*files, &path("/home/user/old"), 100).await.unwrap(), "old");
    shell(&*sandbox, "user", "dd if=/dev/zero of=/home/user/filled bs=1M").await.refused();
    assert_eq!(refused(write_all(&*files, &path("/home/user/late"), vec![1; 100_000])).await, Code::NoSpace);
    assert_eq!(shell(&*sandbox, "user", "echo lives").await.ok(), "lives");

    // Nothing is free any more: no new sandbox, no new template, and nothing of them.
    fs::write(mounted.path().join("rest"), vec![0; 48 << 20]).unwrap_err();
    let listing = |part: &str| stage::entries_in(&mounted.path().join(part)).len();
    let before = (listing("sandboxes"), listing("layers"), listing("templates"));
    for spec in [spec.clone(), SandboxSpec { lifetime: cabana_sandbox::Lifetime::Ephemeral, ..spec.clone() }] {
        let another = SandboxId::random();
        assert_eq!(refused(engine.create(&another, &spec)).await, Code::NoSpace);
        assert!(matches!(engine.attach(&another).await.unwrap(), cabana_sandbox::Found::Absent));
    }
    fs::write(source.path().join("etc/other"), "x").unwrap();
    let error = engine.templates().add("other", &template, &Overrides::default(), &mut |_| {}).unwrap_err();
    assert_eq!(error.code(), Code::NoSpace, "{error}");
    assert_eq!((listing("sandboxes"), listing("layers"), listing("templates")), before);

    fs::remove_file(mounted.path().join("rest")).unwrap();
    engine.destroy(&id).await.unwrap();
    let sandbox = engine.create(&id, &spec).await.unwrap();
    assert_eq!(shell(&*sandbox, "user", "echo works again").await.ok(), "works again");
    engine.close().await;
}

#[tokio::test]
async fn what_is_no_template_is_refused_and_nothing_of_it_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(stage::config(dir.path().join("data"))).await.unwrap();
    let (root, tar) = (dir.path().join("root"), dir.path().join("whole.tar"));
    tiny_root(&root);
    host("tar", &["-C", root.to_str().unwrap(), "-cf", tar.to_str().unwrap(), "."]);
    let whole = fs::read(&tar).unwrap();
    let file = |name: &str, content: &[u8]| {
        fs::write(dir.path().join(name), content).unwrap();
        TemplateSource::Tar(dir.path().join(name))
    };
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let mut flipped = whole.clone();
    flipped[100] ^= 0x55;
    let rows = [
        (file("cut.tar", &whole[..whole.len() / 2]), Code::ArchiveInvalid),
        (file("cut-in-a-header.tar", &whole[..whole.len() / 2 / 512 * 512 + 100]), Code::ArchiveInvalid),
        (file("flipped.tar", &flipped), Code::ArchiveInvalid),
        (file("text.tar", b"this is no archive at all, only text that goes on for a while"), Code::ArchiveInvalid),
        (TemplateSource::Directory(empty), Code::TemplateInvalid),
    ];
    let listing = |part: &str| fs::read_dir(dir.path().join("data").join(part)).unwrap().count();
    let before = (listing("layers"), listing("templates"));
    for (source, code) in rows {
        let error = engine.templates().add("bad", &source, &Overrides::default(), &mut |_| {}).unwrap_err();
        assert_eq!(error.code(), code, "{source:?}: {error}");
        assert_eq!((listing("layers"), listing("templates")), before, "{source:?} left something");
    }
    let absent = TemplateSource::Tar(dir.path().join("absent.tar"));
    engine.templates().add("bad", &absent, &Overrides::default(), &mut |_| {}).unwrap_err();
    engine.templates().add("bad", &TemplateSource::Tar(tar), &Overrides::default(), &mut |_| {}).unwrap();
    engine.close().await;
}

/// The most that this process ever had in memory since it was last asked to forget, in KiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// Chunks that each say where they belong, so that one in the wrong place is seen.
fn pattern(length: u64, chunk: usize) -> Stream<Bytes> {
    let chunks = (0..length / chunk as u64).map(move |number| {
        let mut bytes = vec![number as u8; chunk];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        Ok(Bytes::from(bytes))
    });
    stream::iter(chunks).boxed()
}

async fn digest(mut body: Stream<Bytes>) -> (u64, blake3::Hash) {
    let (mut hasher, mut length) = (blake3::Hasher::new(), 0);
    while let Some(chunk) = body.try_next().await.unwrap() {
        hasher.update(&chunk);
        length += chunk.len() as u64;
    }
    (length, hasher.finalize())
}

#[tokio::test]
async fn a_file_of_500_mib_goes_through_with_flat_memory() {
    const LENGTH: u64 = 500 << 20;
    let inside = Inside::new().await;
    let (files, name) = (inside.files("user"), path("/home/user/large"));
    let wanted = digest(pattern(LENGTH, 1 << 20)).await;

    forget_peak();
    let before = peak();
    let info = files.write(&name, Write::new(WriteMode::Replace), pattern(LENGTH, 1 << 20)).await.unwrap();
    assert_eq!(info.size, LENGTH);
    let (info, body) = files.read(&name, Read::default()).await.unwrap();
    assert_eq!(info.size, LENGTH);
    assert_eq!(digest(body).await, wanted);
    let grown = peak().saturating_sub(before);
    assert!(grown < 64 * 1024, "it grew by {grown} KiB");
    inside.end().await;
}

#[tokio::test]
async fn a_file_above_the_cap_is_refused_and_nothing_of_it_is_kept() {
    let inside = Inside::new().await;
    let (files, name) = (inside.files("user"), path("/home/user/file"));
    write_all(&*files, &name, "old").await.unwrap();
    let before = names_in(&*files, "/home/user").await.len();
    for len in [None, Some(2 << 20)] {
        for mode in [WriteMode::Replace, WriteMode::CreateNew] {
            let to = if mode == WriteMode::Replace { name.clone() } else { path("/home/user/other") };
            let how = Write { cap: 1 << 20, len, ..Write::new(mode) };
            assert_eq!(refused(files.write(&to, how, pattern(2 << 20, 4096))).await, Code::TooLarge, "{mode:?}");
        }
    }
    assert_eq!(names_in(&*files, "/home/user").await.len(), before);
    assert_eq!(read_all(&*files, &name, 100).await.unwrap(), "old");

    let how = Write { cap: 1 << 20, ..Write::new(WriteMode::Replace) };
    files.write(&name, how, pattern(1 << 20, 4096)).await.unwrap();
    assert_eq!(refused(files.read(&name, Read { cap: (1 << 20) - 1, ..Read::default() })).await, Code::TooLarge);
    drop(files.read(&name, Read { cap: 1 << 20, ..Read::default() }).await.unwrap());
    let beyond = cabana_sandbox::DEFAULT_FILE_CAP + 1;
    inside.user(&format!("truncate -s {beyond} /home/user/file")).await.ok();
    assert_eq!(refused(files.read(&name, Read::default())).await, Code::TooLarge);
    inside.end().await;
}

#[tokio::test]
async fn a_client_that_breaks_off_a_write_leaves_nothing() {
    let inside = Inside::new().await;
    let (files, name) = (inside.files("user"), path("/home/user/file"));
    write_all(&*files, &name, "old").await.unwrap();
    let before = names_in(&*files, "/home/user").await.len();
    {
        let endless = pattern(4 << 20, 1 << 18).chain(stream::pending()).boxed();
        let write = files.write(&name, Write::new(WriteMode::Replace), endless);
        tokio::time::timeout(Duration::from_millis(500), write).await.expect_err("it waits for more");
    }
    let began = Instant::now();
    while names_in(&*files, "/home/user").await.len() != before {
        assert!(began.elapsed() < PATIENCE, "a temporary file is left");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(read_all(&*files, &name, 100).await.unwrap(), "old");
    inside.end().await;
}
