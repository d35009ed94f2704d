//! What a sandbox may use, and what happens to one that wants more.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cabana_engine::{Config, Engine};
use cabana_sandbox::{
    Base, Code, Enforced, Error, Event, ExecSpec, Exit, Limits, NetworkPolicy, Provider, Sandbox, SandboxEvent,
    SandboxId, SandboxPath, SandboxSpec, Status, Wanted,
};
use futures_util::{StreamExt, future::join_all};

use crate::{
    inside::{marked, proc_file, unique_sleep, until},
    stage,
};

const NONE: Limits = Limits::NONE;

/// Touches as many MiB as it is told, and waits for the end of its input.
const HOG: &str = "python3 -c 'import sys; hold = bytearray(int(sys.argv[1]) << 20); print(len(hold))' ";

fn limited(limits: Limits) -> SandboxSpec {
    SandboxSpec { limits, ..SandboxSpec::new(Base::Host) }
}

async fn run(sandbox: &dyn Sandbox, script: &str) -> (Exit, String) {
    let spec = ExecSpec::shell(script, SandboxPath::root());
    let mut process = sandbox.exec(spec).await.unwrap();
    let mut said = Vec::new();
    loop {
        match process.events.next().await.expect("an exit comes last").unwrap() {
            Event::Output(output) => said.extend_from_slice(&output.bytes),
            Event::Exit(exit) => return (exit, String::from_utf8_lossy(&said).into_owned()),
        }
    }
}

async fn with(limits: Limits) -> (Arc<Engine>, Arc<dyn Sandbox>) {
    let engine = stage::engine().await;
    let sandbox = engine.create(&SandboxId::random(), &limited(limits)).await.unwrap();
    (engine, sandbox)
}

async fn end(engine: Arc<Engine>, sandbox: Arc<dyn Sandbox>) {
    engine.destroy(sandbox.id()).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn this_host_limits_memory_processors_processes_files_and_traffic() {
    let engine = stage::engine().await;
    let can = engine.capabilities();
    assert_eq!([can.memory, can.cpu, can.pids, can.open_files], [Enforced::ByKernel; 4]);
    assert_eq!(can.io, Enforced::ByWatching);
    engine.close().await;
}

/// Who ends commands whose time is over must come to its turn among those that use up what all of them have.
#[tokio::test]
async fn init_comes_first_under_a_limit_of_the_processor() {
    const PRIORITIES: &str = "ps -o ni= -p 1; ps -o ni= -p $$";
    let (engine, sandbox) = with(Limits { cpu_milli: Some(50), ..NONE }).await;
    let numbers = |said: String| said.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(numbers(run(&*sandbox, PRIORITIES).await.1), ["-15", "0"]);
    end(engine, sandbox).await;
    let (engine, sandbox) = with(NONE).await;
    assert_eq!(numbers(run(&*sandbox, PRIORITIES).await.1), ["0", "0"], "nobody else competes with it");
    end(engine, sandbox).await;
}

#[tokio::test]
async fn a_command_over_the_memory_limit_is_out_of_memory_and_the_sandbox_goes_on() {
    let (engine, sandbox) = with(Limits { memory: Some(64 << 20), ..NONE }).await;
    let mut events = engine.events();
    let (exit, said) = run(&*sandbox, &format!("exec {HOG} 256")).await;
    assert_eq!(exit.status, Status::OutOfMemory, "{said}");
    let (id, event) = events.next().await.unwrap().unwrap();
    assert!(id == *sandbox.id() && matches!(event, SandboxEvent::OutOfMemory(Some(_))), "{event:?}");
    let (exit, said) = run(&*sandbox, &format!("{HOG} 16")).await;
    assert_eq!((exit.status, said.trim()), (Status::Code(0), "16777216"));
    end(engine, sandbox).await;
}

#[tokio::test]
async fn a_process_that_no_command_waits_for_is_told_of_too() {
    let (engine, sandbox) = with(Limits { memory: Some(64 << 20), ..NONE }).await;
    let mut events = engine.events();
    let (exit, _) = run(&*sandbox, &format!("setsid {HOG} 256 >/dev/null 2>&1 & exit 0")).await;
    assert_eq!(exit.status, Status::Code(0));
    let (_, event) = events.next().await.unwrap().unwrap();
    assert_eq!(event, SandboxEvent::OutOfMemory(None));
    end(engine, sandbox).await;
}

#[tokio::test]
async fn memory_of_all_processes_and_of_files_in_memory_counts_together() {
    let (engine, sandbox) = with(Limits { memory: Some(96 << 20), ..NONE }).await;
    let (exit, said) = run(&*sandbox, "head -c 300M /dev/zero >/dev/shm/f 2>/dev/null; stat -c %s /dev/shm/f").await;
    assert_eq!((exit.status, said.trim()), (Status::Code(0), "50331648"));
    // Half of the memory is full of a file now: the other half is less than this wants.
    assert_eq!(run(&*sandbox, &format!("exec {HOG} 64")).await.0.status, Status::OutOfMemory);
    assert_eq!(run(&*sandbox, &format!("rm /dev/shm/f; exec {HOG} 64")).await.0.status, Status::Code(0));
    end(engine, sandbox).await;
}

#[tokio::test]
async fn a_fork_bomb_ends_at_the_limit_of_processes_and_a_neighbour_does_not_feel_it() {
    let (engine, sandbox) = with(Limits { pids: Some(50), ..NONE }).await;
    let neighbour = engine.create(&SandboxId::random(), &limited(Limits { pids: Some(50), ..NONE })).await.unwrap();
    let bomb = "import os,time\nn=0\ntry:\n  while n<500:\n    if os.fork()==0:\n      time.sleep(1000)\n    n+=1\nexcept OSError as e:\n  print(e.errno)\nprint(n,flush=True)\nos._exit(0)\n";
    let (_, said) = run(&*sandbox, &format!("python3 -c '{bomb}'")).await;
    let said: Vec<u32> = said.lines().filter_map(|line| line.parse().ok()).collect();
    assert!(said.len() == 2 && said[0] == 11 && said[1] < 50, "{said:?}");
    let usage = sandbox.usage().await.unwrap();
    assert!(usage.pids <= 50, "{usage:?}");
    // What is full of processes takes no command, and says so; when they are gone, it does.
    let full = sandbox.exec(ExecSpec::shell("true", SandboxPath::root())).await;
    assert!(full.is_err() || usage.pids < 50);
    let (exit, said) = run(&*neighbour, "for i in $(seq 20); do sleep 1000 & done; echo well").await;
    assert_eq!((exit.status, said.trim()), (Status::Code(0), "well"));
    engine.destroy(neighbour.id()).await.unwrap();
    end(engine, sandbox).await;
}

/// What says how many processes this one is counted to: of version 1 where the controller is there, and else of version 2.
fn counting_group(pid: u32) -> PathBuf {
    let groups = proc_file(pid, "cgroup").unwrap();
    if let Some((_, group)) = groups.lines().find_map(|line| line.split_once(":pids:/")) {
        return Path::new("/sys/fs/cgroup/pids").join(group);
    }
    Path::new("/sys/fs/cgroup").join(groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap())
}

#[tokio::test]
async fn processes_of_a_sandbox_without_limits_count_to_those_of_all() {
    let (engine, sandbox) = with(NONE).await;
    let mark = unique_sleep();
    let spec = ExecSpec::argv(["sleep".to_owned(), mark.clone()], SandboxPath::root());
    let process = sandbox.exec(spec).await.unwrap();
    until("the command runs", || !marked(&mark).is_empty()).await;
    let group = counting_group(marked(&mark)[0]);
    let of_all = group.ancestors().find(|group| group.ends_with("cabana")).expect("the group of all");
    let most = fs::read_to_string(of_all.join("pids.max")).unwrap();
    assert!(most.trim().parse::<u64>().is_ok(), "{of_all:?} is limited: {most}");
    drop(process);
    end(engine, sandbox).await;
}

#[tokio::test]
async fn processor_time_stays_within_the_limit() {
    let (engine, sandbox) = with(Limits { cpu_milli: Some(200), ..NONE }).await;
    let busy = "import os,time\nfor _ in range(3):\n  if os.fork()==0:\n    break\nend=time.monotonic()+1.5\nwhile time.monotonic()<end: pass\n";
    let before = sandbox.usage().await.unwrap().cpu;
    let begun = std::time::Instant::now();
    let (exit, said) = run(&*sandbox, &format!("python3 -c '{busy}'; wait; sleep 2")).await;
    assert_eq!(exit.status, Status::Code(0), "{said}");
    let used = sandbox.usage().await.unwrap().cpu - before;
    // Quota comes in whole periods: one more than have passed, at most.
    let most = (begun.elapsed() + Duration::from_millis(200)).mul_f64(0.2) + Duration::from_millis(50);
    assert!(used <= most, "{used:?} of at most {most:?}");
    end(engine, sandbox).await;
}

#[tokio::test]
async fn a_process_opens_no_more_files_than_it_may_also_when_that_changes() {
    let (engine, sandbox) = with(Limits { open_files: Some(64), ..NONE }).await;
    let (_, said) = run(&*sandbox, "ulimit -Sn; ulimit -Hn; ulimit -n 65 2>/dev/null || echo no more").await;
    assert_eq!(said, "64\n64\nno more\n");
    sandbox.update(Wanted::Limits(Limits { open_files: Some(4096), ..NONE })).await.unwrap();
    assert_eq!(run(&*sandbox, "ulimit -Sn; ulimit -Hn").await.1, "1024\n4096\n");
    sandbox.update(Wanted::Limits(NONE)).await.unwrap();
    let (_, said) = run(&*sandbox, "ulimit -Hn").await;
    assert!(said.trim().parse::<u64>().unwrap() > 4096, "{said}");
    end(engine, sandbox).await;
}

/// On average: what is moved before it is measured is moved at once, and waited for afterwards. So a reader that goes on for
/// long enough has had no more than its rate and a second's worth; without a limit it would have had all of it by then.
#[tokio::test]
async fn the_disk_is_read_and_written_no_faster_than_it_may_be() {
    const RATE: u64 = 8 << 20;
    const GOES_ON: &str = r#"
import os, sys, time
way, rate = sys.argv[1], int(sys.argv[2])
begun, moved = time.monotonic(), 0
while moved < 240 << 20:
    if os.system(f"dd {way} bs=1M count=4 2>/dev/null"):
        sys.exit("dd failed")
    moved += 4 << 20
    if moved >= 32 << 20 and moved <= rate * (time.monotonic() - begun) + rate:
        sys.exit(0)
sys.exit(f"{moved >> 20} MiB in {time.monotonic() - begun:.2f} s")
"#;
    let (engine, sandbox) = with(Limits { io: Some(RATE), ..NONE }).await;
    for way in ["if=/dev/zero of=/var/tmp/f oflag=direct", "if=/var/tmp/f of=/dev/null iflag=direct"] {
        let (exit, said) = run(&*sandbox, &format!("python3 -c '{GOES_ON}' '{way}' {RATE} 2>&1")).await;
        assert_eq!(exit.status, Status::Code(0), "{way}: {said}");
    }
    end(engine, sandbox).await;
}

#[tokio::test]
async fn limits_change_at_run_time_and_stay_through_stop_and_start() {
    let (engine, sandbox) = with(NONE).await;
    // Something that ran before the limit came is under it too.
    let (exit, said) = run(&*sandbox, &format!("{HOG} 128")).await;
    assert_eq!((exit.status, said.trim()), (Status::Code(0), "134217728"));
    let hog = format!("exec {HOG} 128");
    sandbox.update(Wanted::Limits(Limits { memory: Some(64 << 20), ..NONE })).await.unwrap();
    assert_eq!(run(&*sandbox, &hog).await.0.status, Status::OutOfMemory);
    engine.stop(sandbox.id()).await.unwrap();
    let sandbox = engine.start(sandbox.id()).await.unwrap();
    assert_eq!(run(&*sandbox, &hog).await.0.status, Status::OutOfMemory);
    sandbox.update(Wanted::Limits(NONE)).await.unwrap();
    assert_eq!(run(&*sandbox, &hog).await.0.status, Status::Code(0));
    end(engine, sandbox).await;
}

#[tokio::test]
async fn changes_that_come_at_once_are_all_kept() {
    let (engine, sandbox) = with(NONE).await;
    let rules: Vec<_> = (1..=8).map(|n| NetworkPolicy::Allow(vec![format!("192.0.2.{n}")])).collect();
    let limits = |n: u64| Wanted::Limits(Limits { memory: Some((32 + n) << 20), ..NONE });
    let changes = rules.iter().zip(1..).flat_map(|(rule, n)| [limits(n), Wanted::Network(rule.clone())]);
    let done = join_all(changes.map(|change| sandbox.update(change))).await;
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    engine.stop(sandbox.id()).await.unwrap();
    let sandbox = engine.start(sandbox.id()).await.unwrap();
    assert_eq!(run(&*sandbox, &format!("exec {HOG} 128")).await.0.status, Status::OutOfMemory);
    // There is a network after the start: a connection is taken in and reset, and not unreachable.
    let reset = "python3 -c 'import socket; socket.create_connection((\"198.51.100.1\", 80)).recv(1)' 2>&1 | grep -o 'reset by peer'";
    assert_eq!(run(&*sandbox, reset).await.1.trim(), "reset by peer");
    end(engine, sandbox).await;
}

#[tokio::test]
async fn the_next_sandbox_has_not_the_limits_of_the_last() {
    let engine = stage::engine().await;
    for round in 0..24 {
        let limits = if round % 2 == 0 { Limits { memory: Some(32 << 20), pids: Some(20), ..NONE } } else { NONE };
        let sandbox = engine.create(&SandboxId::random(), &limited(limits)).await.unwrap();
        let (exit, said) = run(&*sandbox, &format!("exec {HOG} 64")).await;
        let expected = if round % 2 == 0 { Status::OutOfMemory } else { Status::Code(0) };
        assert_eq!(exit.status, expected, "{round}: {said}");
        engine.destroy(sandbox.id()).await.unwrap();
    }
    engine.close().await;
}

#[tokio::test]
async fn limits_hold_also_where_no_init_waits() {
    let engine = Engine::open(Config { spares: 0, ..stage::config(stage::shared_data()) }).await.unwrap();
    for round in 0..4 {
        let limits = Limits { memory: Some(32 << 20), ..NONE };
        let sandbox = engine.create(&SandboxId::random(), &limited(limits)).await.unwrap();
        let (exit, said) = run(&*sandbox, &format!("exec {HOG} 64")).await;
        assert_eq!(exit.status, Status::OutOfMemory, "{round}: {said}");
        engine.destroy(sandbox.id()).await.unwrap();
    }
    engine.close().await;
}

#[tokio::test]
async fn the_least_of_everything_is_enough_for_a_command() {
    let least = Limits {
        memory: Some(4 << 20),
        cpu_milli: Some(100),
        pids: Some(8),
        disk: Some(1 << 20),
        inodes: Some(64),
        open_files: Some(16),
        io: Some(1 << 20),
        output: Some(4 << 10),
    };
    let (engine, sandbox) = with(least).await;
    let (exit, said) = run(&*sandbox, "echo well > /tmp/said; cat /tmp/said").await;
    assert_eq!((exit.status, said.trim()), (Status::Code(0), "well"));
    end(engine, sandbox).await;
}

#[tokio::test]
async fn absurd_limits_are_refused_and_change_nothing() {
    let (engine, sandbox) = with(NONE).await;
    for limits in [
        Limits { memory: Some(0), ..NONE },
        Limits { memory: Some(u64::MAX), ..NONE },
        Limits { cpu_milli: Some(0), ..NONE },
        Limits { cpu_milli: Some(u32::MAX), ..NONE },
        Limits { pids: Some(1), ..NONE },
        Limits { pids: Some(u32::MAX), ..NONE },
        Limits { disk: Some(4096), ..NONE },
        Limits { disk: Some(u64::MAX), ..NONE },
        Limits { inodes: Some(1), ..NONE },
        Limits { open_files: Some(3), ..NONE },
        Limits { open_files: Some(u32::MAX), ..NONE },
        Limits { io: Some(1), ..NONE },
    ] {
        let id = SandboxId::random();
        let refused = engine.create(&id, &limited(limits)).await.err().expect("refused");
        assert_eq!(refused.code(), Code::BadRequest, "{limits:?}: {refused}");
        assert!(matches!(engine.attach(&id).await.unwrap(), cabana_sandbox::Found::Absent));
        let refused = sandbox.update(Wanted::Limits(limits)).await.unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{limits:?}: {refused}");
    }
    assert_eq!(run(&*sandbox, &format!("{HOG} 64")).await.0.status, Status::Code(0));
    end(engine, sandbox).await;
}
