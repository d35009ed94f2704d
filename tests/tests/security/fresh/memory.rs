//! Memory that no process holds: in queues and segments of the kernel.

use cabana_sandbox::{ExecSpec, Limits, SandboxPath, SandboxSpec, Status};

use crate::{
    attacks::{QUEUES, Ran},
    inside::{Inside, passing, until},
};

const LIMIT_MIB: u64 = 128;

async fn limited() -> Inside {
    let limits = Limits { memory: Some(LIMIT_MIB << 20), ..Limits::NONE };
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
    cannot_be_hidden_in("udp").await;
}

#[tokio::test]
async fn hiding_memory_in_queues_of_unix_sockets() {
    cannot_be_hidden_in("unix").await;
}

#[tokio::test]
async fn hiding_memory_in_messages_of_system_v() {
    cannot_be_hidden_in("messages").await;
}

/// What stays without any process must leave room for a command that removes it.
#[tokio::test]
async fn filling_the_memory_with_segments_that_outlive_every_process() {
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
