//! Commands that run on: in the background, after their reader went away, and to their end by force.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cabana_sandbox::{Error, Event, ExecId, ExecSpec, Reattached, Status, Target};
use futures_util::StreamExt;

use super::{
    command::Running,
    stage::{Room, Stage},
    verdict::{Failure, Outcome, ensure, refused, same},
};

const KILL: i32 = 9;
const TERM: i32 = 15;

/// Waits for a file and then goes on: what a case is to decide the moment of.
const WAIT: &str = "until [ -e go ]; do sleep 0.02; done";

pub(super) async fn a_background_process_does_not_hold_the_command(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let done = room.sh(&stage, "sleep 1000 & echo hi").await?;
    same!((done.status, done.out.as_str()), (Status::Code(0), "hi\n"));
    let done = room.sh(&stage, "setsid sleep 1000 & (sleep 1000 >/dev/null &) ; echo hi; exit 3").await?;
    same!((done.status, done.out.as_str()), (Status::Code(3), "hi\n"));
    Ok(())
}

pub(super) async fn a_background_process_may_go_on_writing(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let script =
        "(while :; do echo tick || exit; echo tack >&2 || exit; echo x >> ticks; sleep 0.01; done) & echo started";
    let mut running = room.start(&stage, room.shell(script)).await?;
    same!(running.exit().await?.status, Status::Code(0));
    ensure!(running.text.contains("started"), "it said {:?}", running.text);
    drop(running);
    let ticks = async || match room.stat("ticks").await {
        Ok(info) => Ok::<_, Failure>(info.size),
        Err(Error::NotFound(_)) => Ok(0),
        Err(other) => Err(other.into()),
    };
    let (before, ticks) = (ticks().await?, &ticks);
    stage.until("fifty more ticks", || async move { Ok(ticks().await? > before + 100) }).await
}

pub(super) async fn there_is_one_exit_and_then_the_end(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for script in ["echo hi; exit 4", "sleep 1000 & echo hi; exit 4"] {
        let mut running = room.start(&stage, room.shell(script)).await?;
        let exit = running.exit().await?;
        same!((exit.status, running.text.as_str()), (Status::Code(4), "hi\n"));
        let after = running.next().await?;
        ensure!(after.is_none(), "after the exit came {after:?}");
    }
    Ok(())
}

pub(super) async fn dropping_a_process_kills_nothing(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let process = room.sandbox.exec(room.shell(&format!("echo early; {WAIT}; echo late; echo x > finished"))).await?;
    drop(process);
    room.write("go", "").await?;
    stage.until("the file that it makes at its end", || room.exists("finished")).await
}

pub(super) async fn a_running_command_is_found_again(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let spec = room.shell(&format!("{WAIT}; exit 3"));
    let id = spec.id;
    let first = room.sandbox.exec(spec).await?;
    let pid = first.pid;
    drop(first);
    let Reattached::Running(again) = room.sandbox.reattach(&id, 0).await? else {
        return Err(Failure::new("a running command is not found as running"));
    };
    same!(again.pid, pid);
    room.write("go", "").await?;
    let mut again = Running::new(&stage, again);
    same!(again.exit().await?.status, Status::Code(3));
    ensure!(again.next().await?.is_none(), "the events go on after the exit");
    Ok(())
}

pub(super) async fn an_ended_command_is_found_again_until_it_is_forgotten(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let spec = room.shell("echo hi; exit 5");
    let id = spec.id;
    room.run(&stage, spec).await?;
    for _ in 0..2 {
        match room.sandbox.reattach(&id, 0).await? {
            Reattached::Exited(exit, _) => same!(exit.status, Status::Code(5)),
            Reattached::Running(_) => ensure!(false, "an ended command is found as running"),
            Reattached::Missing => ensure!(false, "an ended command is missing"),
        }
    }
    for _ in 0..2 {
        room.sandbox.forget(&id).await?;
        ensure!(matches!(room.sandbox.reattach(&id, 0).await?, Reattached::Missing), "it is there after forget");
    }
    let unseen = room.shell("exit 6");
    let id = unseen.id;
    drop(room.sandbox.exec(unseen).await?);
    let room = &room;
    let ended = || async move {
        Ok(match room.sandbox.reattach(&id, 0).await? {
            Reattached::Exited(exit, _) => exit.status == Status::Code(6),
            Reattached::Running(_) | Reattached::Missing => false,
        })
    };
    stage.until("the exit of a command that nobody watched", ended).await
}

pub(super) async fn an_unknown_command_is_missing(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    ensure!(matches!(room.sandbox.reattach(&ExecId::now(), 0).await?, Reattached::Missing), "what never ran is found");
    room.sandbox.forget(&ExecId::now()).await?;
    Ok(())
}

pub(super) async fn one_id_runs_once(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let spec = room.shell(&format!("echo run >> runs; {WAIT}"));
    let mut first = room.start(&stage, spec.clone()).await?;
    refused!(room.sandbox.exec(spec.clone()).await, Error::Duplicate(_));
    room.write("go", "").await?;
    same!(first.exit().await?.status, Status::Code(0));
    refused!(room.sandbox.exec(spec.clone()).await, Error::Duplicate(_));
    same!(room.sh(&stage, "cat runs").await?.out, "run\n");
    Ok(())
}

pub(super) async fn processes_lists_what_runs(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    same!(room.sandbox.processes().await?, []);
    let spec = room.shell(&format!("echo pid $$.; {WAIT}"));
    let id = spec.id;
    let mut running = room.start(&stage, spec).await?;
    running.says(".").await?;
    let pid: u32 = running.text.trim().trim_start_matches("pid ").trim_end_matches('.').parse()?;
    same!(running.process.pid, Some(pid), "the pid is the one seen inside");
    same!(room.sandbox.processes().await?, [(id, pid)]);
    room.write("go", "").await?;
    running.exit().await?;
    let room = &room;
    stage.until("an empty list", || async move { Ok(room.sandbox.processes().await?.is_empty()) }).await
}

pub(super) async fn a_signal_reaches_the_leader(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let script = "trap 'echo got it; exit 9' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = room.start(&stage, room.shell(script)).await?;
    running.says("ready").await?;
    running.process.control.signal(TERM, Target::Leader).await?;
    same!(running.exit().await?.status, Status::Code(9));
    ensure!(running.text.contains("got it"), "it said {:?}", running.text);

    let mut running = room.start(&stage, room.argv(&["sleep", "1000"])).await?;
    running.process.control.signal(KILL, Target::Leader).await?;
    same!(running.exit().await?.status, Status::Signal(KILL));
    Ok(())
}

pub(super) async fn a_signal_to_an_ended_command_is_ok(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let mut running = room.start(&stage, room.shell("true")).await?;
    running.exit().await?;
    for target in [Target::Leader, Target::Tree] {
        running.process.control.signal(KILL, target).await?;
    }
    same!(room.sh(&stage, "echo alive").await?.out, "alive\n");
    Ok(())
}

/// Its argument tells it from every other process.
const MARKER: (&str, &str) = ("98765", "4321");

/// A child, one in a session of its own, and one whose parent is gone. Then it goes on itself.
const FAMILY: &str =
    "sleep 98765.4321 & setsid sleep 98765.4321 & (setsid sh -c 'sleep 98765.4321 & exit' &); echo ready.;";

/// How many of the family run. What it looks for is in the environment, so that it does not find itself.
async fn family(stage: &Stage, room: &Room) -> Outcome<usize> {
    let script = r#"for f in /proc/[0-9]*/cmdline; do
        c=$(tr '\0' ' ' <"$f" 2>/dev/null)
        case "$c" in "sleep $A.$B "*) echo found;; esac
    done"#;
    let env = BTreeMap::from([("A".to_owned(), MARKER.0.to_owned()), ("B".to_owned(), MARKER.1.to_owned())]);
    Ok(room.run(stage, ExecSpec { env, ..room.shell(script) }).await?.out.lines().count())
}

pub(super) async fn a_timeout_ends_the_whole_tree_and_keeps_the_output(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let spec = room.shell(&format!("echo partial; {FAMILY} sleep 98765.4321"));
    let mut running = room.start(&stage, ExecSpec { timeout: Some(Duration::from_secs(3)), ..spec }).await?;
    running.says("ready.").await?;
    let (stage, room) = (&*stage, &room);
    stage.until("all four to run", || async move { Ok(family(stage, room).await? == 4) }).await?;
    let exit = running.exit().await?;
    same!(exit.status, Status::TimedOut);
    ensure!(exit.wall >= Duration::from_secs(3), "it ran for {:?} only", exit.wall);
    ensure!(running.text.starts_with("partial\n"), "the output is kept: {:?}", running.text);
    ensure!(running.next().await?.is_none(), "the events go on after the exit");
    stage.until("the end of the whole tree", || async move { Ok(family(stage, room).await? == 0) }).await?;
    same!(room.sh(stage, "echo alive").await?.out, "alive\n", "the sandbox lives on");
    Ok(())
}

pub(super) async fn a_signal_to_the_tree_reaches_daemons(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let mut running = room.start(&stage, room.shell(&format!("{FAMILY} sleep 98765.4321"))).await?;
    running.says("ready.").await?;
    let mut other = room.start(&stage, room.shell(&format!("{WAIT}; exit 8"))).await?;
    let (stage, room) = (&*stage, &room);
    stage.until("all four to run", || async move { Ok(family(stage, room).await? == 4) }).await?;
    running.process.control.signal(KILL, Target::Tree).await?;
    same!(running.exit().await?.status, Status::Signal(KILL));
    stage.until("the end of the whole tree", || async move { Ok(family(stage, room).await? == 0) }).await?;
    room.write("go", "").await?;
    same!(other.exit().await?.status, Status::Code(8), "another command goes on");
    Ok(())
}

pub(super) async fn a_signal_to_the_tree_reaches_what_was_left_behind(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let mut running = room.start(&stage, room.shell(&format!("{FAMILY} exit 0"))).await?;
    running.says("ready.").await?;
    same!(running.exit().await?.status, Status::Code(0));
    let (stage, room) = (&*stage, &room);
    stage.until("those left behind to run", || async move { Ok(family(stage, room).await? == 3) }).await?;
    running.process.control.signal(KILL, Target::Tree).await?;
    stage.until("their end", || async move { Ok(family(stage, room).await? == 0) }).await
}

pub(super) async fn commands_run_after_a_tree_was_killed(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    for _ in 0..3 {
        let mut running = room.start(&stage, room.shell("echo ready.; sleep 1000 & sleep 1000")).await?;
        running.says("ready.").await?;
        running.process.control.signal(KILL, Target::Tree).await?;
        same!(running.exit().await?.status, Status::Signal(KILL));
        // What ended one command is not held against the next, here or in another sandbox.
        for _ in 0..5 {
            let done = room.sh(&stage, "echo alive").await?;
            same!((done.status, done.out.as_str()), (Status::Code(0), "alive\n"));
        }
        let other = stage.room().await?.sh(&stage, "echo alive").await?;
        same!((other.status, other.out.as_str()), (Status::Code(0), "alive\n"), "in another sandbox");
    }
    Ok(())
}

pub(super) async fn stop_ends_every_process(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    same!(room.sh(&stage, FAMILY).await?.status, Status::Code(0));
    {
        let (stage, room) = (&*stage, &room);
        stage.until("all three to run", || async move { Ok(family(stage, room).await? == 3) }).await?;
    }
    stage.provider().stop(room.sandbox.id()).await?;
    let sandbox = stage.provider().start(room.sandbox.id()).await?;
    let files = sandbox.files(None);
    let room = Room { sandbox, files, dir: room.dir };
    same!(family(&stage, &room).await?, 0);
    same!(room.sandbox.processes().await?, []);
    Ok(())
}

pub(super) async fn a_commands_stream_ends_with_its_sandbox(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let mut running = room.start(&stage, room.shell("echo ready; exec sleep 1000")).await?;
    running.says("ready").await?;
    stage.soon("the end of stop", stage.provider().stop(room.sandbox.id())).await??;
    match stage.soon("the end of the command", running.process.events.next()).await? {
        Some(Ok(Event::Exit(exit))) => same!(exit.status, Status::Signal(KILL)),
        Some(Err(Error::Gone)) => {}
        other => ensure!(false, "it must be an exit by signal 9 or Gone, and is {other:?}"),
    }
    let after = stage.soon("the end of the events", running.process.events.next()).await?;
    ensure!(after.is_none(), "after that came {after:?}");
    Ok(())
}
