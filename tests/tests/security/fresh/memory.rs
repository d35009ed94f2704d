//! Memory that no process holds: in queues and segments of the kernel.

use std::ops::RangeInclusive;

use cabana_sandbox::{ExecSpec, Limits, SandboxPath, SandboxSpec, Status};

use crate::{
    attacks::{QUEUES, Ran},
    inside::{Inside, passing, until},
};

const LIMIT_MIB: u64 = 128;

async fn limited() -> Inside {
    limited_to(LIMIT_MIB).await
}

async fn limited_to(mib: u64) -> Inside {
    let limits = Limits { memory: Some(mib << 20), ..Limits::NONE };
    Inside::with(SandboxSpec { limits, ..passing() }).await
}

async fn fill(inside: &Inside, kind: &str, mib: u64) -> Ran {
    inside.attack("user", &QUEUES, &[kind, &mib.to_string(), "end"]).await
}

/// It is ended for it, or does not get rid of more than it may have.
async fn cannot_be_hidden_in(kind: &str) {
    let free = Inside::new().await;
    let control: u64 = fill(&free, kind, 2 * LIMIT_MIB).await.ok().parse().unwrap();
    assert!(control >= 2 * LIMIT_MIB, "without a limit there is room: {control}");
    free.end().await;
    hides_no_more_than_its_limit(kind).await;
}

async fn hides_no_more_than_its_limit(kind: &str) {
    let inside = limited().await;
    let ran = fill(&inside, kind, 2 * LIMIT_MIB).await;
    match ran.status {
        Status::OutOfMemory => {}
        _ => {
            let hidden: u64 = ran.ok().parse().unwrap();
            assert!(hidden <= LIMIT_MIB, "{hidden} MiB in {kind}");
        }
    }
    inside.still_works().await;
    inside.end().await;
}

#[tokio::test]
async fn hiding_memory_in_queues_of_tcp() {
    cannot_be_hidden_in("tcp").await;
}

#[tokio::test]
async fn hiding_memory_in_queues_of_udp() {
    // Each sandbox has so few of these sockets that none fills them without a limit either.
    let control = QUEUES.run_on_host(&["udp", &(2 * LIMIT_MIB).to_string(), "apart"]).ok();
    assert!(control.parse::<u64>().unwrap() >= 2 * LIMIT_MIB, "where nothing bounds it there is room: {control}");
    hides_no_more_than_its_limit("udp").await;
}

#[tokio::test]
async fn hiding_memory_in_queues_of_unix_sockets() {
    cannot_be_hidden_in("unix").await;
}

/// What no limit of the kernel's counts is bounded in each sandbox: it stays a part of what the sandbox may have.
async fn is_bounded(kind: &str, share: u64) {
    stays_within(kind, 1..=SMALL_MIB / share).await;
}

const SMALL_MIB: u64 = 64;

async fn stays_within(kind: &str, range: RangeInclusive<u64>) {
    // At once: most of it is waiting.
    let control = async {
        let arguments = [kind.to_owned(), (4 * SMALL_MIB).to_string()];
        let run = move || QUEUES.run_on_host(&[&arguments[0], &arguments[1], "apart"]).ok();
        let control: u64 = tokio::task::spawn_blocking(run).await.unwrap().parse().unwrap();
        assert!(control >= 4 * SMALL_MIB, "where nothing bounds it there is room: {control}");
    };
    let attempt = async |user: &str| {
        let inside = limited_to(SMALL_MIB).await;
        let hidden: u64 = inside.attack(user, &QUEUES, &[kind, "256", "end"]).await.ok().parse().unwrap();
        assert!(range.contains(&hidden), "{hidden} MiB in {kind}");
        inside.still_works().await;
        inside.end().await;
    };
    tokio::join!(control, attempt("root"), attempt("user"));
}

#[tokio::test]
async fn hiding_memory_in_queues_of_netlink() {
    is_bounded("netlink", 4).await;
}

#[tokio::test]
async fn hiding_memory_in_datagrams_that_are_never_sent() {
    is_bounded("begun", 1).await;
}

#[tokio::test]
async fn hiding_memory_in_notices_of_what_was_sent() {
    stays_within("notices", 0..=0).await;
}

#[tokio::test]
async fn hiding_memory_in_connections_that_nobody_accepts() {
    is_bounded("pending", 1).await;
}

const ORDINARY: &str = "import os, socket, struct, threading
names = [name for _, name in socket.if_nameindex()]
print('interfaces', ','.join(names))
socket.getaddrinfo('localhost', 80)
queue = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
queue.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20000)
print('datagrams', queue.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
small = socket.socket(); small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 5000)
print('small', small.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
large = socket.socket(); large.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
print('large', large.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
for value in [b'', b'123']:
    try: small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, value)
    except OSError as e: print('short', e.strerror)
for family, address in [(socket.AF_INET, ('127.0.0.1', 0)), (socket.AF_INET6, ('::1', 0)), (socket.AF_UNIX, '/tmp/s%d' % os.getpid())]:
    listener = socket.socket(family); listener.bind(address); listener.listen()
    def answer():
        for _ in range(20):
            peer, _ = listener.accept(); peer.sendall(b'x' * (1 << 20)); peer.close()
    thread = threading.Thread(target=answer); thread.start()
    total = 0
    for _ in range(20):
        client = socket.socket(family); client.connect(listener.getsockname())
        if family == socket.AF_UNIX: owner = struct.unpack('3i', client.getsockopt(socket.SOL_SOCKET, 17, 12))[1]
        while part := client.recv(1 << 20): total += len(part)
    thread.join(); print(family.name, total)
print('owner', owner == os.getuid())
try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).listen()
except OSError as e: print('datagrams that listen', e.strerror)
try: socket.socket(fileno=os.open('/dev/null', 0), family=2, type=1, proto=0).listen()
except OSError as e: print('no socket', e.strerror)";

/// What the broker does for a program is what the kernel would have done.
#[tokio::test]
async fn programs_that_ask_for_addresses_listen_and_set_queues_go_on_as_before() {
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let spec = ExecSpec::argv(["/usr/bin/python3", "-c", ORDINARY], SandboxPath::root());
        let said = inside.command(user, spec).await.ok();
        let expected = "interfaces lo\ndatagrams 40000\nsmall 10000\nlarge 131072\nshort Invalid argument\n\
            short Invalid argument\nAF_INET 20971520\nAF_INET6 20971520\nAF_UNIX 20971520\nowner True\n\
            datagrams that listen Operation not supported\nno socket Socket operation on non-socket";
        assert_eq!(said, expected, "as {user}");
        // The tool of every administrator, which asks for a longer queue than it gets.
        let addresses = inside.command(user, ExecSpec::shell("ip -brief address show lo", SandboxPath::root())).await;
        assert!(addresses.ok().contains("127.0.0.1/8"), "as {user}");
    }
    inside.end().await;
}

#[tokio::test]
async fn hiding_memory_in_messages_of_system_v() {
    cannot_be_hidden_in("messages").await;
}

/// What stays without any process must leave room for a command that removes it.
#[tokio::test]
async fn filling_the_memory_with_segments_that_outlive_every_process() {
    let free = Inside::new().await;
    let control: u64 = fill(&free, "shared", 2 * LIMIT_MIB).await.ok().parse().unwrap();
    assert!(control > LIMIT_MIB / 2, "without a limit there is more room: {control}");
    free.end().await;
    let inside = limited().await;
    let held: u64 = fill(&inside, "shared", 2 * LIMIT_MIB).await.ok().parse().unwrap();
    assert!((16..=LIMIT_MIB / 2).contains(&held), "{held} MiB");
    inside.still_works().await;
    inside.user("ipcrm --all=shm").await.ok();
    let again: u64 = fill(&inside, "shared", 2 * LIMIT_MIB).await.ok().parse().unwrap();
    assert_eq!(again, held);
    inside.end().await;
}

/// Root inside chooses init as the first to go, and then uses up the memory. It is its own sandbox that it ends; the server
/// notices, and says so.
#[tokio::test]
async fn making_process_1_the_first_to_go_when_memory_runs_out() {
    let inside = limited().await;
    let script = "echo 1000 > /proc/1/oom_score_adj; cat /proc/1/oom_score_adj; \
        echo 0 > /proc/self/oom_score_adj; python3 -c 'x = bytearray(b\"x\" * (300 << 20))'";
    let mut spec = ExecSpec::shell(script, SandboxPath::root());
    spec.user = Some(crate::inside::named("root"));
    let ran = tokio::time::timeout(crate::inside::SOON, cabana_sandbox::run(&*inside.sandbox, spec, 1024)).await;
    let _whatever_it_was = ran.expect("an answer in time");
    until("the server knows how it is", async || {
        let spec = ExecSpec::argv(["true"], SandboxPath::root());
        match tokio::time::timeout(crate::inside::SOON, inside.sandbox.exec(spec)).await.expect("an answer in time") {
            Ok(_) => true,
            Err(error) => error.code().as_str() == "sandbox_gone",
        }
    })
    .await;
    let engine = inside.engine.clone();
    let other = Inside::of(engine.clone(), &passing()).await;
    other.still_works().await;
    cabana_sandbox::Provider::destroy(&*engine, other.sandbox.id()).await.unwrap();
    crate::inside::soon("its end", inside.end()).await;
}

const OPTIONS: &str = "import socket, struct, ctypes, errno
code = ctypes.create_string_buffer(struct.pack('HBBI', 0x06, 0, 0, 0xffffffff))
program = struct.pack('HxxxxxxP', 1, ctypes.addressof(code))
def attempt(what, family, level, option, value):
    s = socket.socket(family, socket.SOCK_DGRAM)
    if option == 51: s.setsockopt(1, 15, 1); s.bind(('127.0.0.1', 0))
    try: s.setsockopt(level, option, value); print(what, 'done')
    except OSError as e: print(what, errno.errorcode[e.errno])
    return s
attempt('filter', socket.AF_UNIX, 1, 26, program)
attempt('reuseport', socket.AF_INET, 1, 51, program)
attempt('zerocopy', socket.AF_INET, 1, 60, 1)
attempt('timestamps', socket.AF_INET, 1, 37, 8)
for family, level, option in [(socket.AF_INET, 0, 11), (socket.AF_INET6, 41, 25)]:
    s = attempt('errors%d' % option, family, level, option, 1)
    print('held%d' % option, 'done' if s.getsockopt(level, option) else 'EPERM')";

/// Who has closed a connection holds no descriptor of it any more, and the kernel counts those for the whole machine.
#[tokio::test]
async fn connections_that_are_closed_with_bytes_that_nobody_reads() {
    const SCRIPT: &str = "import socket, time
listener = socket.create_server(('127.0.0.1', 0), backlog=8)
held = []
for _ in range(50):
    one = socket.socket(); one.connect(listener.getsockname()); held.append(listener.accept()[0]); one.setblocking(False)
    try:
        while True: one.send(bytes(65536))
    except BlockingIOError: pass
    one.close()
port = ':%04X' % listener.getsockname()[1]
def left():
    rows = [line.split() for line in open('/proc/self/net/tcp')]
    return sum(row[2].endswith(port) and row[3] == '04' for row in rows)  # FIN_WAIT1
print(left(), flush=True)
end = time.monotonic() + 50
while (rest := left()) and time.monotonic() < end: time.sleep(0.1)
print(rest)";
    let inside = Inside::new().await;
    let spec = ExecSpec::argv(["/usr/bin/python3", "-c", SCRIPT], SandboxPath::root());
    assert_eq!(inside.command("user", spec).await.ok(), "50\n0");
    inside.end().await;
}

/// An instance of inotify counts for the owner of the user namespace, who may be the server's user.
#[tokio::test]
async fn taking_all_instances_of_inotify() {
    const SCRIPT: &str = "import ctypes
libc = ctypes.CDLL(None)
print(sum(libc.inotify_init1(0) >= 0 for _ in range(100)))";
    let control = std::process::Command::new("python3").args(["-c", SCRIPT]).output().unwrap();
    let taken = |text: String| text.trim().parse::<u32>().unwrap();
    assert!(taken(String::from_utf8(control.stdout).unwrap()) > 32, "where nothing bounds it");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let spec = ExecSpec::argv(["/usr/bin/python3", "-c", SCRIPT], SandboxPath::root());
        assert!((1..=32).contains(&taken(inside.command(user, spec).await.ok())), "as {user}");
    }
    inside.end().await;
}

/// Descriptors in sockets count for a user, and root inside is init's: it must have room left to pass one on.
#[tokio::test]
async fn commands_may_have_fewer_descriptors_than_init() {
    let inside = Inside::new().await;
    let script = "ulimit -Hn; awk '/Max open files/ { print $5 }' /proc/1/limits";
    for user in ["root", "user"] {
        let said = inside.command(user, ExecSpec::shell(script, SandboxPath::root())).await.ok();
        let numbers: Vec<u64> = said.lines().map(|line| line.parse().unwrap()).collect();
        let [own, of_init] = numbers[..] else { panic!("{said}") };
        assert!(own > 0 && 2 * own <= of_init, "as {user}: {said}");
    }
    inside.end().await;
}

/// What a socket can be made to hold counts for the whole machine, or for nobody: compiled filters, queues of errors.
#[tokio::test]
async fn kernel_memory_by_options_of_a_socket() {
    let host = std::process::Command::new("python3").args(["-c", OPTIONS]).output().unwrap();
    let host = String::from_utf8_lossy(&host.stdout).into_owned();
    // The control: where nothing stops it, each of them works.
    assert_eq!(host.matches(" done").count(), 8, "{host}");
    let inside = Inside::new().await;
    for user in ["root", "user"] {
        let spec = ExecSpec::argv(["/usr/bin/python3", "-c", OPTIONS], SandboxPath::root());
        let report = inside.command(user, spec).await.report();
        for refused in ["filter", "reuseport", "zerocopy", "timestamps", "held11", "held25"] {
            assert_eq!(report.of(refused), "EPERM", "{refused} as {user}");
        }
        // Resolvers ask for these and end when they are refused.
        for answered in ["errors11", "errors25"] {
            assert_eq!(report.of(answered), "done", "{answered} as {user}");
        }
    }
    inside.end().await;
}
