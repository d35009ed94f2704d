//! Commands on a terminal of their own.

use std::sync::Arc;

use cabana_sandbox::{Channel, ExecSpec, Status, Stdio, TermSize};
use tokio::io::AsyncWriteExt;

use super::{
    command::Running,
    stage::{Room, Stage},
    verdict::{Failure, Outcome, ensure, same},
};

fn on_terminal(room: &Room, script: &str) -> ExecSpec {
    ExecSpec { stdio: Stdio::Terminal(TermSize { cols: 101, rows: 37 }), ..room.shell(script) }
}

async fn type_in(running: &mut Running<'_>, keys: &[u8]) -> Outcome {
    let Some(stdin) = &mut running.process.stdin else { return Err(Failure::new("a terminal has a keyboard")) };
    stdin.write_all(keys).await?;
    stdin.flush().await?;
    Ok(())
}

pub(super) async fn a_terminal_is_a_terminal(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let script = "test -t 0 && test -t 1 && test -t 2 && echo yes; echo error >&2; tty; exit 3";
    let mut running = room.start(&stage, on_terminal(&room, script)).await?;
    same!(running.exit().await?.status, Status::Code(3));
    ensure!(running.text.starts_with("yes\r\nerror\r\n/dev/pts/"), "it said {:?}", running.text);
    ensure!(running.channels.iter().all(|channel| *channel == Channel::Terminal), "there is one channel");
    Ok(())
}

pub(super) async fn a_terminal_has_the_size_it_was_given(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let mut running = room.start(&stage, on_terminal(&room, "stty size")).await?;
    same!(running.exit().await?.status, Status::Code(0));
    same!(running.text, "37 101\r\n");
    Ok(())
}

pub(super) async fn a_terminal_can_be_resized(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let script = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.02; done";
    let mut running = room.start(&stage, on_terminal(&room, script)).await?;
    running.says("ready").await?;
    running.process.control.resize(TermSize { cols: 120, rows: 50 }).await?;
    running.says("50 120").await?;
    same!(running.exit().await?.status, Status::Code(0));
    Ok(())
}

pub(super) async fn what_is_typed_arrives(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let script = "echo ready; read line; echo \"got <$line>\"; cat; echo over";
    let mut running = room.start(&stage, on_terminal(&room, script)).await?;
    running.says("ready").await?;
    type_in(&mut running, b"hello there\n").await?;
    running.says("got <hello there>").await?;
    // Ctrl-D at the beginning of a line is the end of the input.
    type_in(&mut running, b"\x04").await?;
    running.says("over").await?;
    same!(running.exit().await?.status, Status::Code(0));
    Ok(())
}

pub(super) async fn control_c_interrupts(stage: Arc<Stage>) -> Outcome {
    let room = stage.room().await?;
    let mut running = room.start(&stage, on_terminal(&room, "echo ready; exec sleep 1000")).await?;
    running.says("ready").await?;
    type_in(&mut running, b"\x03").await?;
    let status = running.exit().await?.status;
    ensure!(matches!(status, Status::Signal(2) | Status::Code(130)), "it ended with {status:?}");
    same!(room.sh(&stage, "echo alive").await?.out, "alive\n");
    Ok(())
}
