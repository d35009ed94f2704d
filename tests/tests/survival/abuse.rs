//! What a guest, or a stranger at the door, can do to a sandbox that outlives its server.

use std::{fs, os::unix::fs::MetadataExt, path::PathBuf};

use cabana_sandbox::{
    Base, ExecId, ExecSpec, Provider, SandboxId, SandboxPath, SandboxSpec, Status, Stdio, TermSize, User, run,
};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::{
    owner::Owner,
    stage::{all_of, data, engine, found, until},
};

fn home(id: &SandboxId) -> PathBuf {
    data().join("sandboxes").join(id.as_str())
}

fn init_of(id: &SandboxId) -> u64 {
    let note: serde_json::Value = serde_json::from_slice(&fs::read(home(id).join("live.json")).unwrap()).unwrap();
    note["pid"].as_u64().unwrap()
}

/// What the open files of a process hold, by the name that they had; memory files have one that tells.
fn open_files(pid: u64) -> Vec<(String, u64)> {
    let fds = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    fds.filter_map(|fd| {
        let name = fs::read_link(fd.path()).ok()?.to_string_lossy().into_owned();
        Some((name, fs::metadata(fd.path()).map_or(0, |about| about.blocks() * 512)))
    })
    .collect()
}

#[tokio::test]
async fn a_flood_of_output_while_nobody_is_there_stays_bounded() {
    let (id, exec) = (SandboxId::random(), ExecId::now());
    let mut owner = Owner::start(&data());
    owner.tell(&format!("create {id} persistent"));
    owner.exec(&id, exec, "output", "yes 'a line of a flood' | head -c 200000000; touch /tmp/over; exec sleep 1000");
    owner.kill();
    let over = home(&id).join("fs/upper0/tmp/over");
    let mut most = 0;
    until("it was not held up", async || {
        most = most.max(open_files(init_of(&id)).iter().map(|(_, bytes)| *bytes).max().unwrap_or(0));
        over.exists()
    })
    .await;
    assert!(most < 4 << 20, "init holds {most} bytes for it");
    let engine = engine().await;
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn a_thousand_commands_leave_init_with_no_more_descriptors_than_it_remembers() {
    let (id, engine) = (SandboxId::random(), engine().await);
    let sandbox = engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
    for number in 0..600 {
        let outcome =
            run(&*sandbox, ExecSpec::shell(format!("echo {number}"), SandboxPath::root()), 100).await.unwrap();
        assert_eq!(outcome.exit.status, Status::Code(0));
    }
    let held = open_files(init_of(&id)).len();
    assert!(held < 128 + 60, "init holds {held} descriptors");
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn commands_that_say_much_push_older_ones_out_and_not_the_server() {
    let (id, engine) = (SandboxId::random(), engine().await);
    let sandbox = engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
    let mut first = None;
    for _ in 0..40 {
        let spec = ExecSpec::shell("head -c 1000000 /dev/zero", SandboxPath::root());
        first.get_or_insert(spec.id);
        run(&*sandbox, spec, 100).await.unwrap();
    }
    let kept = || open_files(init_of(&id)).iter().map(|(_, bytes)| *bytes).sum::<u64>();
    until("init lets go of them", async || kept() < 20 << 20).await;
    assert!(all_of(&*sandbox, first.unwrap()).await.is_none());
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

/// What has ended must not keep init busy, which would turn in circles for as long as nobody comes.
#[tokio::test]
async fn terminals_and_pipes_that_are_over_are_let_go_of_while_nobody_is_there() {
    let (id, engine) = (SandboxId::random(), engine().await);
    let sandbox = engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
    for stdio in [Stdio::Terminal(TermSize { cols: 80, rows: 24 }), Stdio::Output, Stdio::InputOutput] {
        let spec = ExecSpec { stdio, ..ExecSpec::shell("echo over", SandboxPath::root()) };
        run(&*sandbox, spec, 100).await.unwrap();
    }
    engine.leave().await;
    let busy = || open_files(init_of(&id)).iter().any(|(name, _)| name.contains("ptmx") || name.contains("pipe:"));
    until("init lets go of them", async || !busy()).await;
    let engine = crate::stage::engine().await;
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}

#[tokio::test]
async fn strangers_at_the_door_are_sent_away_and_keep_nobody_out() {
    let (id, exec) = (SandboxId::random(), ExecId::now());
    let mut owner = Owner::start(&data());
    owner.tell(&format!("create {id} persistent"));
    owner.exec(&id, exec, "output", "echo here; exec sleep 1000");
    owner.kill();
    let mut strangers = Vec::new();
    for said in [vec![], vec![16], vec![0xff; 40_000], hello(1, 0), hello(u32::MAX, u128::MAX), vec![19], vec![10; 500]]
    {
        let stranger = knock(&id);
        let _ = rustix::net::send(&stranger, &said, rustix::net::SendFlags::empty());
        strangers.push(stranger); // some just stay there and say nothing
    }
    let engine = engine().await;
    let sandbox = found(&engine, &id).await;
    for _ in 0..10 {
        strangers.push(knock(&id)); // while there is a server, too
    }
    let outcome = run(&*sandbox, ExecSpec::shell("echo alive", SandboxPath::root()), 100).await.unwrap();
    assert_eq!(outcome.stdout.whole().unwrap(), b"alive\n");
    let mut process = crate::stage::running(&*sandbox, exec).await;
    assert_eq!(crate::stage::says(&mut process, "here\n").await, "here\n");
    engine.destroy(&id).await.unwrap();
    assert!(all_of(&*sandbox, exec).await.is_some_and(|said| said.exit.is_some()));
    engine.close().await;
}

/// An init that lets nobody in, behind a record that nobody can read: it can be ended all the same.
#[tokio::test]
async fn a_sandbox_that_cannot_be_taken_up_can_be_destroyed() {
    let (id, exec) = (SandboxId::random(), ExecId::now());
    let mut owner = Owner::start(&data());
    owner.tell(&format!("create {id} persistent"));
    owner.exec(&id, exec, "output", "exec sleep 1000");
    owner.kill();
    let init = rustix::process::Pid::from_raw(init_of(&id) as i32).unwrap();
    rustix::process::kill_process(init, rustix::process::Signal::STOP).unwrap();
    let crowd: Vec<_> = (0..16).map(|_| knock(&id)).collect();
    fs::write(home(&id).join("record.json"), "{").unwrap();
    let engine = engine().await;
    assert!(engine.attach(&id).await.is_err());
    engine.destroy(&id).await.unwrap();
    assert!(!home(&id).exists());
    // Whoever adopted it may take a while to wait for it.
    let stat = format!("/proc/{}/stat", init.as_raw_nonzero());
    until("its init is gone", async || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "))).await;
    drop(crowd);
    engine.close().await;
}

fn hello(protocol: u32, token: u128) -> Vec<u8> {
    [vec![16], protocol.to_le_bytes().to_vec(), token.to_le_bytes().to_vec()].concat()
}

fn knock(id: &SandboxId) -> std::os::fd::OwnedFd {
    use std::os::fd::AsRawFd;
    let dir = fs::File::open(home(id)).unwrap();
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let door = SocketAddrUnix::new(format!("/proc/self/fd/{}/door", dir.as_raw_fd())).unwrap();
    rustix::net::connect(&socket, &door).unwrap();
    socket
}

#[tokio::test]
async fn nothing_inside_leads_to_the_door_the_note_or_the_output_of_others() {
    let (id, engine) = (SandboxId::random(), engine().await);
    let sandbox = engine.create(&id, &SandboxSpec::new(Base::Host)).await.unwrap();
    let secret = ExecSpec::shell("echo told-in-confidence; exec sleep 1000", SandboxPath::root());
    let mut process = sandbox.exec(ExecSpec { user: Some(User::root()), ..secret }).await.unwrap();
    crate::stage::says(&mut process, "told-in-confidence").await;
    let attempt = r#"
        for fd in /proc/1/fd/* /proc/1/map_files/*; do
            cat "$fd" 2>/dev/null && echo "READ $fd"; { echo forged > "$fd"; } 2>/dev/null && echo "WROTE $fd"
        done
        find / -xdev \( -name live.json -o -name door -o -name record.json \) -path '*sandboxes*' 2>/dev/null
        grep -a told-in-confidence /proc/1/mem 2>/dev/null
        ls /proc/self/fd | while read fd; do readlink /proc/self/fd/$fd; done | grep -E 'memfd|socket|leases'
        true"#;
    for user in ["root", "user"] {
        let spec = ExecSpec { user: Some(User::new(user).unwrap()), ..ExecSpec::shell(attempt, SandboxPath::root()) };
        let outcome = run(&*sandbox, spec, 100_000).await.unwrap();
        let out = String::from_utf8_lossy(&outcome.stdout.whole().unwrap()).into_owned();
        assert_eq!(out, "", "as {user}");
    }
    engine.destroy(&id).await.unwrap();
    engine.close().await;
}
