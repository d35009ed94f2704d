//! Memory and time of the kernel that no limit counts, and what lies in memory for all.

use std::os::unix::fs::PermissionsExt as _;

use cabana_sandbox::{ExecSpec, SandboxPath, SandboxSpec, Source, View};

use crate::{
    attacks::{Ran, Report, in_own},
    inside::{Inside, passing, path},
};

/// Each by root and by an ordinary user.
async fn by_both(inside: &Inside, script: &str) -> Vec<Report> {
    let mut reports = Vec::new();
    for user in ["root", "user"] {
        let spec = ExecSpec::argv(["/usr/bin/python3", "-c", script], SandboxPath::root());
        reports.push(inside.command(user, spec).await.report());
    }
    reports
}

fn on_host(script: &str) -> Report {
    in_own(&[], &format!("ulimit -n 8192; exec python3 - <<'EOF'\n{script}\nEOF")).report()
}

const ACCESS_LISTS: &str = "import errno, os, struct
def access_list(users):
    entry = lambda tag, rights, who: struct.pack('<HHI', tag, rights, who)
    named = b''.join(entry(2, 4, 1000 + number) for number in range(users))
    no_id = 0xffffffff
    return struct.pack('<I', 2) + entry(1, 6, no_id) + named + entry(4, 4, no_id) + entry(16, 4, no_id) + entry(32, 0, no_id)
def attempt(what, at, name, value, **how):
    try: os.setxattr(at, name, value, **how); print(what, 'done')
    except OSError as e: print(what, errno.errorcode[e.errno])
os.makedirs(directory := '/dev/shm/listed%d' % os.getpid())
path = directory + '/file'; open(path, 'w').close()
memory = os.memfd_create('listed')
access, default = 'system.posix_acl_access', 'system.posix_acl_default'
for length, users in [('short', 1), ('long', 8000)]:
    value = access_list(users)
    attempt(length + ' path', path, access, value)
    attempt(length + ' nofollow', path, access, value, follow_symlinks=False)
    attempt(length + ' descriptor', memory, access, value)
    attempt(length + ' default', directory, default, value)
os.unlink(path); os.rmdir(directory)
path = '/tmp/listed%d' % os.getpid(); open(path, 'w').close()
attempt('other', path, 'user.note', bytes(2000))
print('kept', 'done' if os.getxattr(path, 'user.note') == bytes(2000) else 'lost'); os.unlink(path)";

/// A list of some thousand users is 64 KiB long, and a file in memory has it there for as long as there is the file.
#[tokio::test]
async fn hiding_memory_in_access_lists() {
    on_host(ACCESS_LISTS).all_done();
    let inside = Inside::new().await;
    let kinds = ["path", "nofollow", "descriptor", "default"];
    for report in by_both(&inside, ACCESS_LISTS).await {
        for kind in kinds {
            assert_eq!(report.of(&format!("short {kind}")), "done");
            assert_eq!(report.of(&format!("long {kind}")), "ENOSPC");
        }
        for what in ["other", "kept"] {
            assert_eq!(report.of(what), "done", "an attribute that programs make");
        }
    }
    inside.end().await;
}

const POLICIES: &str = "import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
memory = os.memfd_create('bound'); os.ftruncate(memory, 1 << 20)
place = mmap.mmap(memory, 1 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(place))
MBIND, GET_MEMPOLICY = (237, 239) if os.uname().machine == 'x86_64' else (235, 236)
BIND, OF_ADDRESS = 2, 2
node = ctypes.c_ulong(1)
asked = libc.syscall(MBIND, ctypes.c_ulong(address), ctypes.c_ulong(4096), BIND, ctypes.byref(node), ctypes.c_ulong(64), 0)
print('asked', 'done' if asked == 0 else 'refused')
mode = ctypes.c_int(-1)
libc.syscall(GET_MEMPOLICY, ctypes.byref(mode), None, ctypes.c_ulong(0), ctypes.c_ulong(address), ctypes.c_ulong(OF_ADDRESS))
print('kept', 'done' if mode.value == BIND else mode.value)";

/// Where a page of shared memory should lie is remembered for each page of a file, which may be as long as one likes.
#[tokio::test]
async fn hiding_memory_in_policies_of_shared_memory() {
    on_host(POLICIES).all_done();
    let inside = Inside::new().await;
    for report in by_both(&inside, POLICIES).await {
        assert_eq!(report.of("asked"), "done", "programs that ask for it go on");
        assert_eq!(report.of("kept"), "0", "nothing is remembered");
    }
    inside.end().await;
}

const WAITING: &str = "import ctypes, errno, os, resource, struct
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
libc = ctypes.CDLL(None, use_errno=True)
event = os.eventfd(1)
def attempt(what, came): print(what, 'done' if came >= 0 else errno.errorcode[ctypes.get_errno()])
for number in [1024, 1025, 8000]:
    many = ctypes.create_string_buffer(struct.pack('ihh', event, 1, 0) * number)
    attempt('poll of %d' % number, libc.poll(many, ctypes.c_ulong(number), 0))
    attempt('ppoll of %d' % number, libc.ppoll(many, ctypes.c_ulong(number), ctypes.create_string_buffer(16), None))
    bits = ctypes.create_string_buffer(1024)
    attempt('select of %d' % number, libc.select(number, bits, None, None, ctypes.create_string_buffer(16)))
    attempt('pselect of %d' % number, libc.pselect(number, bits, None, None, ctypes.create_string_buffer(16), None))";

/// A thread that waits has 72 bytes for each descriptor that it names, as often as it names it.
#[tokio::test]
async fn hiding_memory_in_what_threads_wait_for() {
    on_host(WAITING).all_done();
    let inside = Inside::new().await;
    for report in by_both(&inside, WAITING).await {
        for call in ["poll", "ppoll", "select", "pselect"] {
            assert_eq!(report.of(&format!("{call} of 1024")), "done");
            for number in [1025, 8000] {
                assert_eq!(report.of(&format!("{call} of {number}")), "EINVAL");
            }
        }
    }
    inside.end().await;
}

const SEMAPHORES: &str = "import ctypes, errno, struct
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, came): print(what, 'done' if came >= 0 else errno.errorcode[ctypes.get_errno()])
attempt('as large as programs make it', made := libc.semget(0, 250, 0o1600))
attempt('as many as programs ask for', libc.semop(made, struct.pack('HhH', 0, 1, 0) * 32, ctypes.c_ulong(32)))
attempt('asking for very many', libc.semop(made, struct.pack('HhH', 0, 1, 0) * 500, ctypes.c_ulong(500)))
libc.semctl(made, 0, 0)
attempt('a large set', large := libc.semget(0, 5000, 0o1600))
if large >= 0: libc.semctl(large, 0, 0)";

/// A call that wakes some looks at all that wait, with all that they ask for, while nothing else runs on that processor.
#[tokio::test]
async fn holding_a_processor_by_semaphores() {
    in_own(&["--ipc"], &format!("exec python3 - <<'EOF'\n{SEMAPHORES}\nEOF")).report().all_done();
    let inside = Inside::new().await;
    for report in by_both(&inside, SEMAPHORES).await {
        for usual in ["as large as programs make it", "as many as programs ask for"] {
            assert_eq!(report.of(usual), "done");
        }
        assert_eq!(report.of("asking for very many"), "E2BIG");
        assert_eq!(report.of("a large set"), "EINVAL");
    }
    inside.end().await;
}

/// What was read is there without waiting for the disk, or is not in memory.
const IS_IN_MEMORY: &str = "import os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
if 'read' in sys.argv: os.pread(file, 4096, 0)
if 'drop' in sys.argv: os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
try: os.preadv(file, [bytearray(4096)], 0, os.RWF_NOWAIT); print('in memory')
except BlockingIOError: print('on the disk')";

/// Files of the base are in memory once for all.
#[tokio::test]
async fn dropping_what_others_read_from_memory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![7; 1 << 20]).unwrap();
    rustix::fs::fsync(std::fs::File::open(&file).unwrap()).unwrap();
    let look = |how: &str| {
        let mut command = std::process::Command::new("python3");
        Ran::of(command.args(["-c", IS_IN_MEMORY]).arg(&file).arg(how)).ok()
    };
    assert_eq!(look("read"), "in memory");
    // The kernel leaves what it is just busy with.
    let is_dropped = (0..100).any(|_| look("drop") == "on the disk");
    assert!(is_dropped, "where nothing stops it");
    let view = View { source: Source::Host(dir.path().into()), at: path("/seen"), writable: false };
    let inside = Inside::with(SandboxSpec { views: vec![view], ..passing() }).await;
    for user in ["root", "user"] {
        assert_eq!(look("read"), "in memory");
        let drop = ExecSpec::argv(["/usr/bin/python3", "-c", IS_IN_MEMORY, "/seen/file", "drop"], SandboxPath::root());
        assert_eq!(inside.command(user, drop).await.ok(), "in memory", "as {user}");
        assert_eq!(look("look"), "in memory", "after {user}");
    }
    inside.end().await;
}

/// What is left of connections that were closed in order is nobody's memory.
#[tokio::test]
async fn connections_that_were_closed_leave_little_behind() {
    const CLOSE: &str = "import socket
listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen()
for _ in range(4000):
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept(); client.close(); server.close()
line = next(line for line in open('/proc/net/sockstat') if line.startswith('TCP:')).split()
print('left', line[line.index('tw') + 1])";
    let left = |report: &Report| report.of("left").parse::<u32>().unwrap();
    let control = left(&in_own(&["--net"], &format!("ip link set lo up; python3 - <<'EOF'\n{CLOSE}\nEOF")).report());
    assert!(control > 3000, "where nothing bounds it, it stays for a minute: {control}");
    let inside = Inside::new().await;
    for report in by_both(&inside, CLOSE).await {
        assert!((1..=2048).contains(&left(&report)), "{report:?}");
    }
    inside.end().await;
}
