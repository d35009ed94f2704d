//! Locks of the kernel that a guest holds for as long as its disk is slow. Who waits for one cannot be interrupted: that must be a
//! few threads of the server, and never all of them. And its own limits do not make it slow.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cabana_sandbox::{
    Control, ExecSpec, Limits, Process, Provider, Sandbox, SandboxPath, SandboxSpec, Source, Stdio, TermSize, View,
    Write, WriteMode,
};
use cabana_testkit::SlowDisk;
use futures_util::{StreamExt, stream};
use tokio::task::{JoinSet, spawn_blocking};

use crate::{
    attacks::{HOLD_DISK, HOLD_LOCK, LINGER},
    inside::{Inside, PATIENCE, marked, passing, path, soon, unique, until},
};

/// A program of the compiler that nothing else uses.
const LARGE: &str = "/usr/bin/lto-dump-12";

/// The least that may be asked for.
fn limited() -> SandboxSpec {
    SandboxSpec { limits: Limits { io: Some(1 << 20), ..Limits::default() }, ..passing() }
}

/// Its traffic is counted, and never too much.
fn counted() -> SandboxSpec {
    SandboxSpec { limits: Limits { io: Some(1 << 50), ..Limits::default() }, ..passing() }
}

/// Makes the disk slow for one that is [`counted`].
async fn slow_disk(inside: &Inside) -> SlowDisk {
    let mark = unique("stays");
    let words = ["sh", "-c", "while :; do sleep 1; done", &mark];
    inside.sandbox.exec(ExecSpec::argv(words, SandboxPath::root())).await.unwrap();
    until("its process is there", async || !marked(&mark).is_empty()).await;
    let pid = u32::try_from(marked(&mark)[0]).unwrap();
    SlowDisk::of(pid, Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap()
}

/// Whether the commands are frozen of which one has this mark.
fn is_frozen(mark: &str) -> bool {
    let look = || {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", marked(mark).first()?)).ok()?;
        let own = PathBuf::from(groups.lines().find_map(|line| line.strip_prefix("0::/"))?);
        let run = own.ancestors().find(|group| group.ends_with("run"))?;
        let mounts = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].map(PathBuf::from);
        let state = mounts.iter().find_map(|mount| fs::read_to_string(mount.join(run).join("cgroup.freeze")).ok())?;
        Some(state.trim() == "1")
    };
    look().unwrap_or(false)
}

/// A neighbour of the attacker, who must not notice anything.
async fn neighbour(inside: &Inside) -> Inside {
    Inside::of(inside.engine.clone(), &passing()).await
}

async fn goes_on(neighbour: &Inside) {
    for _ in 0..5 {
        neighbour.still_works().await;
        let read = soon("a file of a neighbour", neighbour.read("user", "/etc/passwd")).await;
        assert!(read.is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_the_lock_of_a_commands_output() {
    let inside = Inside::with(counted()).await;
    let neighbour = neighbour(&inside).await;
    let disk = slow_disk(&inside).await;
    // The control: inside, who takes from such a pipe without waiting for bytes is held up.
    let report = inside.attack("user", &HOLD_LOCK, &["try", LARGE]).await;
    assert!(report.out.contains("waited done"), "{report:?}");
    let mut attacks = Vec::new();
    for _ in 0..4 {
        attacks.push(inside.start("user", &HOLD_LOCK, &["pipe", LARGE]).await);
    }
    // A client reads each of them.
    let reading: JoinSet<()> = attacks.into_iter().map(|attack| attack.events.for_each(async |_| ())).collect();
    goes_on(&neighbour).await;
    drop(disk);
    soon("the end of the attacker", inside.engine.destroy(inside.sandbox.id())).await.unwrap();
    soon("the end of what it said", reading.join_all()).await;
    goes_on(&neighbour).await;
    neighbour.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_the_lock_of_a_file_that_many_requests_write_to() {
    let inside = Inside::with(counted()).await;
    let neighbour = neighbour(&inside).await;
    let append = async |files: Arc<dyn cabana_sandbox::Files>| {
        let body = stream::once(async { Ok(bytes::Bytes::from_static(b"more\n")) }).boxed();
        files.write(&path("/home/user/victim"), Write::new(WriteMode::Append), body).await
    };
    // The control: before anybody holds it, a line more takes no time.
    soon("a write", append(inside.files("user"))).await.unwrap();
    let disk = slow_disk(&inside).await;
    let _attack = inside.start("user", &HOLD_LOCK, &["inode", "/home/user/victim"]).await;
    until("it waits for the disk", async || inside.root("ps -o stat= -C hold_lock").await.out.starts_with('D')).await;
    // More than a runtime has threads, where each request takes one.
    let mut requests: JoinSet<_> = (0..600).map(|_| append(inside.files("user"))).collect();
    let held = tokio::time::timeout(Duration::from_secs(1), requests.join_next()).await;
    assert!(held.is_err(), "the control: they are held up: {held:?}");
    goes_on(&neighbour).await;
    // Its other files wait, too, with a word after a while.
    drop(disk);
    soon("the end of the attacker", inside.engine.destroy(inside.sandbox.id())).await.unwrap();
    soon("the end of the requests", requests.join_all()).await;
    goes_on(&neighbour).await;
    neighbour.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_over_its_disk_rate_ends_at_once() {
    let inside = Inside::with(limited()).await;
    let mark = unique("writes");
    let attack = inside.start("user", &HOLD_LOCK, &["inode", "/home/user/victim", &mark]).await;
    until("it is over its rate", async || is_frozen(&mark)).await;
    let mut rest = Box::pin(attack.events.for_each(async |_| ()));
    let early = tokio::time::timeout(Duration::from_secs(3), &mut rest).await;
    assert!(early.is_err() && is_frozen(&mark), "the control: at this rate it takes a minute");
    soon("its end", inside.engine.destroy(inside.sandbox.id())).await.unwrap();
    soon("the end of its command", rest).await;
    let spec = ExecSpec::argv(["true"], SandboxPath::root());
    assert!(inside.sandbox.exec(spec).await.is_err(), "it is gone");
}

/// What one has written past its rate is written: nobody who shares the file waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_a_file_of_a_shared_directory_by_a_low_disk_rate() {
    let shared = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let view = View { source: Source::Host(shared.path().to_owned()), at: path("/workspace"), writable: true };
    let inside = Inside::with(SandboxSpec { views: vec![view.clone()], ..limited() }).await;
    let neighbour = Inside::of(inside.engine.clone(), &SandboxSpec { views: vec![view], ..passing() }).await;
    let mark = unique("writes");
    let _attack = inside.start("user", &HOLD_LOCK, &["inode", "/workspace/victim", &mark]).await;
    until("it is over its rate", async || is_frozen(&mark)).await;
    soon("a line of a neighbour", neighbour.user("echo more >> /workspace/victim")).await.ok();
    assert!(is_frozen(&mark), "the attacker still waits, and holds nothing");
    inside.engine.destroy(inside.sandbox.id()).await.unwrap();
    neighbour.end().await;
}

/// A directory of the host that a sandbox may read, with more names than fit into a page.
struct HostDirectory {
    dir: tempfile::TempDir,
    name: String,
}

impl HostDirectory {
    fn new() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let name = |number: usize| format!("{number}-{}", "n".repeat(80));
        (0..1500).for_each(|number| fs::write(dir.path().join(name(number)), vec![7; 4096]).unwrap());
        fs::write(dir.path().join("file"), vec![7; 1 << 20]).unwrap();
        Self { name: name(0), dir }
    }

    fn view(&self) -> View {
        View { source: Source::Host(self.dir.path().to_owned()), at: path("/workspace"), writable: false }
    }

    /// Takes the lock of the directory, as everybody does who changes something in it.
    async fn change(&self) {
        let there = self.dir.path().join(&self.name);
        let refused = spawn_blocking(move || fs::create_dir(there)).await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    }

    async fn read(&self) {
        let file = self.dir.path().join("file");
        assert_eq!(spawn_blocking(move || fs::read(file)).await.unwrap().unwrap().len(), 1 << 20);
    }
}

/// A machine whose memory is short: it drops this file as soon as it can.
struct ShortMemory(Arc<AtomicBool>);

impl ShortMemory {
    fn for_file(file: &Path) -> Self {
        let (file, ended) = (fs::File::open(file).unwrap(), Arc::<AtomicBool>::default());
        let until = ended.clone();
        std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
                std::thread::sleep(Duration::from_millis(5)); // often enough, and the processors are for others
            }
        });
        Self(ended)
    }
}

impl Drop for ShortMemory {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

async fn start_holding(inside: &Inside, what: &str, name: &str) -> (Process, String) {
    let mark = unique("holds");
    let process = inside.start("user", &HOLD_DISK, &[what, name, &mark]).await;
    (process, mark)
}

/// The host is not held up while the attack goes on and is over its rate. The control: it is where the kernel holds back the
/// attacker's requests.
async fn holding_up_the_host(what: &str, name: &str, host: impl AsyncFn(&HostDirectory)) {
    let directory = HostDirectory::new();
    let _short = ShortMemory::for_file(&directory.dir.path().join("file"));
    let limits = Limits { io: Some(16 << 20), ..Limits::default() };
    let inside = Inside::with(SandboxSpec { views: vec![directory.view()], limits, ..passing() }).await;
    let (_attack, mark) = start_holding(&inside, what, name).await;
    for _ in 0..3 {
        until("it is over its rate", async || is_frozen(&mark)).await;
        soon("the host", host(&directory)).await;
        assert!(is_frozen(&mark), "the attacker still waits, and holds nothing");
        until("it goes on", async || !is_frozen(&mark)).await;
        soon("the host", host(&directory)).await;
    }
    inside.engine.destroy(inside.sandbox.id()).await.unwrap();

    let inside = Inside::of(inside.engine.clone(), &SandboxSpec { views: vec![directory.view()], ..counted() }).await;
    let disk = slow_disk(&inside).await;
    let (_attack, _) = start_holding(&inside, what, name).await;
    let held_up = async || tokio::time::timeout(Duration::from_secs(2), host(&directory)).await.is_err();
    let held_up = tokio::time::timeout(PATIENCE, async { while !held_up().await {} }).await;
    drop(disk);
    assert!(held_up.is_ok(), "the control: the host is held up");
    inside.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_the_lock_of_a_directory_of_the_host_by_a_low_disk_rate() {
    holding_up_the_host("directory", "/workspace", HostDirectory::change).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_pages_of_a_file_of_the_host_by_a_low_disk_rate() {
    holding_up_the_host("pages", "/workspace/file", HostDirectory::read).await;
}

/// So many at once are more than a runtime of two workers has.
const AT_ONCE: usize = 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_the_file_of_users_that_each_command_asks() {
    let inside = Inside::with(counted()).await;
    let neighbour = neighbour(&inside).await;
    let run =
        async |sandbox: Arc<dyn Sandbox>| cabana_sandbox::run(&*sandbox, ExecSpec::argv(["true"], path("/")), 64).await;
    // The control: before anybody holds it, a command takes no time.
    soon("a command", run(inside.sandbox.clone())).await.unwrap();
    let disk = slow_disk(&inside).await;
    let _attack = inside.start("root", &HOLD_LOCK, &["users", LARGE]).await;
    let mut commands: JoinSet<_> = JoinSet::new();
    let held_up = async || {
        commands.spawn(run(inside.sandbox.clone()));
        tokio::time::timeout(Duration::from_secs(1), commands.join_next()).await.is_err()
    };
    until("the control: a command is held up", held_up).await;
    commands.extend((0..AT_ONCE).map(|_| run(inside.sandbox.clone())));
    goes_on(&neighbour).await;
    drop(disk);
    soon("the end of the attacker", inside.engine.destroy(inside.sandbox.id())).await.unwrap();
    soon("the end of its commands", commands.join_all()).await;
    goes_on(&neighbour).await;
    neighbour.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_the_size_of_a_terminal_that_a_client_changes() {
    let inside = Inside::with(counted()).await;
    let neighbour = neighbour(&inside).await;
    let size = TermSize { cols: 80, rows: 24 };
    let words = inside.bring(&HOLD_LOCK).await;
    let words = words.into_iter().chain(["size".to_owned(), LARGE.to_owned()]);
    let spec = ExecSpec { stdio: Stdio::Terminal(size), ..ExecSpec::argv(words, path("/")) };
    let disk = slow_disk(&inside).await;
    let attack = inside.sandbox.exec(spec).await.unwrap();
    let mut resizes: JoinSet<_> = JoinSet::new();
    let resize = |control: Arc<dyn Control>| async move { control.resize(size).await };
    let held_up = async || {
        resizes.spawn(resize(attack.control.clone()));
        tokio::time::timeout(Duration::from_secs(1), resizes.join_next()).await.is_err()
    };
    until("the control: a change is held up", held_up).await;
    resizes.extend((0..AT_ONCE).map(|_| resize(attack.control.clone())));
    goes_on(&neighbour).await;
    drop(disk);
    soon("the end of the attacker", inside.engine.destroy(inside.sandbox.id())).await.unwrap();
    soon("the end of the changes", resizes.join_all()).await;
    neighbour.end().await;
}

/// A process that waits for the disk does not stand still, and who pauses it waits for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holding_up_a_pause_while_others_ask_what_the_sandbox_uses() {
    let inside = Inside::with(counted()).await;
    let neighbour = neighbour(&inside).await;
    let disk = slow_disk(&inside).await;
    let _attack = inside.start("user", &HOLD_LOCK, &["inode", "/home/user/victim"]).await;
    until("it waits for the disk", async || inside.root("ps -o stat= -C hold_lock").await.out.starts_with('D')).await;
    let (engine, id) = (inside.engine.clone(), inside.sandbox.id().clone());
    let mut pause: JoinSet<_> = JoinSet::new();
    pause.spawn(async move { engine.pause(&id).await.map(drop) });
    let early = tokio::time::timeout(Duration::from_secs(1), pause.join_next()).await;
    assert!(early.is_err(), "the control: it is held up: {early:?}");
    let mut asked: JoinSet<_> = JoinSet::new();
    for _ in 0..AT_ONCE {
        let sandbox = inside.sandbox.clone();
        asked.spawn(async move { sandbox.usage().await.map(drop) });
    }
    let answered = async {
        while asked.join_next().await.is_some() {}
        neighbour.still_works().await;
    };
    tokio::time::timeout(Duration::from_secs(4), answered).await.expect("nobody waits for the pause");
    assert!(pause.try_join_next().is_none(), "the control: it still is");
    drop(disk);
    inside.engine.destroy(inside.sandbox.id()).await.unwrap();
    let _given_up = soon("the end of the pause", pause.join_next()).await;
    neighbour.end().await;
}

/// What the kernel closes by itself, one worker closes for the whole machine.
#[tokio::test]
async fn holding_up_what_closes_files_for_all() {
    const BREAKS_OFF: &str = "import socket, struct
listening = socket.create_server(('127.0.0.1', 0)); client = socket.create_connection(listening.getsockname())
other, _ = listening.accept()
for wish in [(1, 30), (0, 0), (1, 0)]:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', *wish))
    print(struct.unpack('ii', client.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)))
client.close()
try: other.recv(1)
except ConnectionResetError: print('broken off')
for wrong in [b'', b'1234567']:
    try: other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, wrong)
    except OSError as error: print(error.errno)";
    assert_eq!(LINGER.run_on_host(&["1000"]).ok(), "waits", "the control");
    let inside = Inside::new().await;
    assert_eq!(inside.attack("user", &LINGER, &["60000"]).await.ok(), "works");
    let said = inside.user(&format!("python3 -c \"{BREAKS_OFF}\"")).await.ok();
    assert_eq!(said, "(0, 0)\n(0, 0)\n(1, 0)\nbroken off\n22\n22");
    inside.end().await;
}

/// A broker takes locks of open files: on files they are what they are everywhere, and nothing else has any.
#[tokio::test(flavor = "multi_thread")]
async fn locks_of_open_files_are_on_files_alone() {
    const LOCKS: &str = r"
import ctypes, errno, fcntl, os, socket, struct, sys, threading, time
TAKE, WAIT = 37, 38
libc = ctypes.CDLL(None, use_errno=True)
def lock(file, kind, first, command=TAKE, whence=0):
    try: fcntl.fcntl(file, command, struct.pack('hhqqi4x', kind, whence, first, 1, 0)); return 'taken'
    except OSError as error: return errno.errorcode[error.errno]
for dir in sys.argv[1:]:
    name = f'{dir}/locked'
    first, second, only_read = os.open(name, 66), os.open(name, 2), os.open(name, 0)
    said = [lock(first, 1, 0), lock(second, 1, 0), lock(second, 1, 1), lock(only_read, 1, 9), lock(only_read, 0, 9)]
    said += [lock(first, 1, 0, whence=7), lock(99, 1, 0)]
    libc.fcntl(first, TAKE, ctypes.c_void_p(8)); said.append(errno.errorcode[ctypes.get_errno()])
    came = []
    waits = threading.Thread(target=lambda: came.append(lock(second, 1, 0, WAIT)))
    waits.start(); time.sleep(0.2); said.append(len(came))
    lock(first, 2, 0); waits.join(60); said += came
    said.append(lock(first, 1, 0)); os.close(second); said.append(lock(first, 1, 0))
    print(*said)
others = [os.pipe()[0], os.eventfd(0), socket.socket(), os.pidfd_open(os.getpid())]
others += ['/proc/self/ns/time', '/proc/self/mounts', '/dev/null']
files = [other if not isinstance(other, str) else os.open(other, 0) for other in others]
print(*[lock(file, 0, 0) for file in files], *[lock(file, 0, 0, WAIT) for file in files])";
    let of_files = "taken EAGAIN taken EBADF taken EINVAL EBADF EFAULT 0 taken EAGAIN taken";
    let shared = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let on_host = Command::new("python3").args(["-c", LOCKS]).arg(shared.path()).output().unwrap();
    fs::remove_file(shared.path().join("locked")).unwrap();
    let taken = ["taken"; 14].join(" ");
    assert_eq!(String::from_utf8(on_host.stdout).unwrap(), format!("{of_files}\n{taken}\n"), "the control");
    let view = View { source: Source::Host(shared.path().to_owned()), at: path("/workspace"), writable: true };
    let inside = Inside::with(SandboxSpec { views: vec![view], ..passing() }).await;
    let dirs = "/tmp /home/user /workspace /dev/shm";
    let said = inside.user(&format!("python3 -c \"{LOCKS}\" {dirs}")).await.ok();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines, [of_files, of_files, of_files, of_files, &["ENOLCK"; 14].join(" ")]);
    inside.end().await;
}
