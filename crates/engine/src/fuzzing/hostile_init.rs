//! An init that says whatever it likes, to a server that comes back to it and then listens: first what it claims to have
//! kept, with descriptors of any kind, then answers to what was asked and to what was not. The server neither panics nor
//! keeps a descriptor that it was passed.

use std::{
    cell::OnceCell,
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command},
    sync::Arc,
};

use cabana_sandbox::{
    Channel as OutputChannel, Defaults, Event, ExecId, Holder, Limits, Reattached, SandboxId, SandboxPath, User,
};
use futures_util::{FutureExt, StreamExt};
use tokio::task::yield_now;
use tokio_util::task::TaskTracker;

use super::script::{Script, borrowed, leave_nothing_open, runtime};
use crate::{
    channel::Channel,
    exec,
    greeting::greet,
    home::Owned,
    identity::Lease,
    kernel::{fdpass, readiness},
    live::{Holds, Live, Parts},
    places,
    wire::{Ended, Failure, FromInit, KeptExec, PROTOCOL, Step, Stillness},
};

const TOKEN: u128 = 7;

pub fn hostile_init(bytes: &[u8]) {
    drop(dead_process()); // made once
    leave_nothing_open(|| runtime().block_on(meet(Script(bytes), dead_process())));
}

async fn meet(mut script: Script<'_>, gone: OwnedFd) {
    let Ok((ours, theirs)) = fdpass::pair() else { return };
    let Ok(channel) = Channel::new(ours) else { return };
    // What it claims to have kept lies in the socket by the time that the server asks.
    let mut kept = Vec::new();
    let count = script.byte() % 6;
    let (message, fds) = welcome(&mut script, count);
    say(&theirs, &message, &fds);
    for _ in 0..count {
        let (message, fds, id) = kept_exec(&mut script);
        kept.push(id);
        say(&theirs, &message, &fds);
    }
    drop(fds);
    let Some(Ok(Some(found))) = in_some_turns(greet(&channel, TOKEN)).await else { return };
    let Some(parts) = parts(channel, gone) else { return };
    let Ok(live) = Live::found(parts, found) else { return };
    let talk = async {
        while !script.is_over() {
            let (message, fds) = next_message(&mut script);
            say(&theirs, &message, &fds);
            drop(fds);
            yield_now().await;
        }
        drop(theirs);
    };
    let ask = async {
        // Whatever comes of it: a socket that init makes is asked for, and may be anything.
        let connected = live.connect(1).await;
        assert!(connected.is_err(), "nothing listens there");
    };
    tokio::join!(talk, live.listen(), ask, read(&live, &kept));
}

/// One who is told too little would wait for longer than anybody fuzzes.
async fn in_some_turns<T>(act: impl Future<Output = T>) -> Option<T> {
    let turns = async {
        for _ in 0..64 {
            yield_now().await;
        }
    };
    tokio::select! {
        biased;
        done = act => Some(done),
        () = turns => None,
    }
}

/// A welcome with what belongs beside it, or anything else.
fn welcome(script: &mut Script<'_>, execs: u8) -> (Vec<u8>, Vec<OwnedFd>) {
    if script.byte() == 255 {
        return (script.text().to_vec(), script.descriptors());
    }
    let execs = if script.byte() == 255 { u32::MAX } else { u32::from(execs) };
    let last = script.number();
    let used = script.memory_file();
    let (root, terminals) = match script.byte() {
        255 => (script.descriptor(), script.descriptor()),
        _ => (script.directory(c"/"), script.directory(c"/dev/pts")),
    };
    let fds = [root, terminals, script.descriptor(), used];
    let welcome = FromInit::Welcome { protocol: PROTOCOL, stillness: Stillness::Going, last, execs };
    (welcome.encode(), fds.into_iter().flatten().collect())
}

fn kept_exec(script: &mut Script<'_>) -> (Vec<u8>, Vec<OwnedFd>, ExecId) {
    let bits = script.byte();
    let is = |bit: u8| bits & 1 << bit != 0;
    let kept = KeptExec {
        exec: script.number(),
        id: u128::from(script.number()),
        pid: script.number() as u32,
        stdout: is(0),
        stderr: is(1),
        terminal: is(2),
        master: is(3),
        stdin: is(4),
        ended: is(5).then(|| ended(script)),
    };
    // What it says, or whatever it likes.
    let fds = match is(6) && is(7) {
        true => script.descriptors(),
        false => kept.kinds().filter_map(|kind| script.descriptor_of(kind)).collect(),
    };
    (FromInit::Kept(kept).encode(), fds, ExecId::from(uuid::Uuid::from_u128(kept.id)))
}

fn ended(script: &mut Script<'_>) -> Ended {
    Ended {
        status: script.number() as u32,
        timed_out: script.byte() == 1,
        wall_ns: script.number(),
        cpu_us: script.number(),
        peak_kib: script.number(),
    }
}

fn next_message(script: &mut Script<'_>) -> (Vec<u8>, Vec<OwnedFd>) {
    let kind = script.byte() % 8;
    let failure = |script: &mut Script<'_>| Failure { step: Step::Exec, errno: script.number() as i32 };
    let message = match kind {
        0 => FromInit::Started { exec: script.number(), pid: script.number() as u32 },
        1 => FromInit::NotStarted { exec: script.number(), failure: failure(script) },
        2 | 3 => FromInit::Exited { exec: script.number(), ended: ended(script) },
        4 => FromInit::Socket { tag: script.number(), errno: script.number() as u32 },
        5 => FromInit::SetupFailed(failure(script)),
        6 => return (kept_exec(script).0, script.descriptors()),
        _ => return (script.text().to_vec(), script.descriptors()),
    };
    let fds = if kind == 4 || script.byte() == 255 { script.descriptors() } else { Vec::new() };
    (message.encode(), fds)
}

/// What does not fit any more is not said.
fn say(socket: &OwnedFd, message: &[u8], fds: &[OwnedFd]) {
    let _ = fdpass::send(socket.as_fd(), message, &borrowed(fds));
}

/// Clients of every command that was kept, while init goes on talking. Output comes in order, and is over after an exit.
async fn read(live: &Arc<Live>, kept: &[ExecId]) {
    for id in kept {
        match exec::reattach(live, id, 0) {
            Reattached::Running(mut process) => {
                let (mut at, mut over) = (0, false);
                for _ in 0..16 {
                    let event = match process.events.next().now_or_never() {
                        Some(Some(event)) => event,
                        Some(None) => break,
                        None => {
                            yield_now().await;
                            continue;
                        }
                    };
                    assert!(!over, "an event after the exit");
                    match event {
                        Ok(Event::Output(output)) => {
                            assert!(output.at >= at && !output.bytes.is_empty(), "output goes back");
                            assert!(matches!(
                                output.channel,
                                OutputChannel::Stdout | OutputChannel::Stderr | OutputChannel::Terminal
                            ));
                            at = output.at + output.bytes.len() as u64;
                        }
                        Ok(Event::Exit(_)) => over = true,
                        Err(_) => break,
                    }
                }
            }
            Reattached::Exited(_, outputs) => drop(outputs),
            Reattached::Missing => {}
        }
    }
    assert!(live.execs.running().len() <= kept.len());
}

fn parts(channel: Channel, gone: OwnedFd) -> Option<Parts> {
    let defaults = Defaults {
        user: User::new("root").ok()?,
        workdir: SandboxPath::root(),
        env: std::collections::BTreeMap::new(),
    };
    let id = SandboxId::random();
    let holder = Holder::sandbox(None, &id);
    let place = places::SANDBOXES.hold(&holder);
    Some(Parts {
        holder,
        id,
        defaults,
        limits: Limits::default(),
        holds: Holds { lease: Lease::of_nothing(), home: Owned::nothing(), place },
        kept: true,
        uncharged: Arc::default(),
        own: "/nonexistent".into(),
        overlays: vec![b"/".to_vec()],
        channel,
        pidfd: readiness::watch(gone).ok()?,
        tasks: TaskTracker::new(),
        happened: tokio::sync::mpsc::channel(8).0,
    })
}

/// What is killed when init is no good is a process that has ended before.
fn dead_process() -> OwnedFd {
    thread_local!(static DEAD: OnceCell<(Child, OwnedFd)> = const { OnceCell::new() });
    DEAD.with(|dead| {
        let (_, pidfd) = dead.get_or_init(|| {
            let child = Command::new("true").spawn().expect("a process");
            let pid = rustix::process::Pid::from_child(&child);
            let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).expect("its descriptor");
            let mut ended = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut ended, None).expect("its end"); // and it is not waited for: nobody gets its number
            (child, pidfd)
        });
        pidfd.try_clone().expect("a second one")
    })
}
