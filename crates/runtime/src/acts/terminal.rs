//! A command with a terminal, and somebody who sits at it.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use cabana_sandbox::{Control, Event, ExecSpec, Process, Stdin, Stdio, Target, TermSize};
use futures_util::StreamExt;
use rustix::process::Signal;
use sha2::{Digest, Sha256};
use tokio::{io::AsyncWriteExt, sync::mpsc};

use super::{
    Asked,
    exec::{ExitTold, exit_number},
};
use crate::{Act, Cx, Error, Kind, Needs, Result, exec::Taker};

pub struct Terminal {
    pub asked: Asked,
    pub size: TermSize,
    /// What is typed. Its end is the end of whoever typed: a terminal without one is hung up.
    pub typed: mpsc::Receiver<Bytes>,
    /// Beside what is typed, so that a command that does not read can be told to end.
    pub wishes: mpsc::Receiver<Wish>,
    /// What it says, beside the call's output. A command whose reader is slow waits for it, as at any terminal.
    pub said: mpsc::Sender<Bytes>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    Resize(TermSize),
    Signal(i32),
}

impl Terminal {
    /// What a terminal runs that names no command: a login shell, as the user has it.
    pub const LOGIN: &'static str = "exec \"${SHELL:-/bin/sh}\" -l";
}

impl Act for Terminal {
    const VERB: &'static str = "terminal";
    const KIND: Kind = Kind::Terminal;
    type Answer = ExitTold;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn digest(&self) -> [u8; 32] {
        let TermSize { cols, rows } = self.size;
        Sha256::new().chain_update(self.asked.digest()).chain_update(format!("{cols} {rows}")).finalize().into()
    }

    fn argv(&self) -> Vec<String> {
        self.asked.argv()
    }

    async fn run(self, cx: Cx) -> Result<ExitTold> {
        let Self { asked, size, typed, wishes, said } = self;
        let timeout = asked.timeout;
        let (spec, _) = asked.spec(cx.call.into(), &cx, timeout)?;
        let spec = ExecSpec { stdio: Stdio::Terminal(size), ..spec };
        let Process { stdin, mut events, control, .. } = cx.sandbox()?.exec(spec).await?;
        let reading = async {
            let (mut kept, mut taker) = (Ok(()), Taker::new(&cx.output));
            while let Some(event) = events.next().await {
                match event? {
                    Event::Output(output) => {
                        let bytes = output.bytes.clone();
                        if kept.is_ok() {
                            kept = taker.take(output).await;
                        }
                        tokio::select! {
                            _ = said.send(bytes) => {} // nobody may be there any more
                            () = cx.cancel.cancelled() => {}
                        }
                    }
                    Event::Exit(exit) => return kept.map(|()| exit),
                }
            }
            Err(Error::Sandbox(cabana_sandbox::Error::Gone))
        };
        let grace = cx.runtime.settings().grace;
        let left = async {
            tokio::select! {
                () = typing(stdin, typed) => {}
                () = cx.runtime.0.closing.cancelled() => {}
            }
            hang_up(&*control, Signal::HUP, grace).await;
        };
        let cancelled = async {
            cx.cancel.cancelled().await;
            hang_up(&*control, Signal::TERM, grace).await;
        };
        let (mut reading, mut beside) =
            (pin!(reading), pin!(futures_util::future::join3(left, cancelled, wishing(&*control, wishes))));
        let exit = tokio::select! {
            exit = &mut reading => exit?,
            _ = &mut beside => reading.await?,
        };
        cx.note(|notes| notes.exit = exit_number(&exit));
        if cx.cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(exit.into()) }
    }
}

async fn typing(stdin: Option<Stdin>, mut typed: mpsc::Receiver<Bytes>) {
    let mut stdin = stdin;
    while let Some(bytes) = typed.recv().await {
        if let Some(input) = &mut stdin
            && input.write_all(&bytes).await.is_err()
        {
            stdin = None; // the command has closed its end; whoever types may still be there
        }
    }
}

async fn wishing(control: &dyn Control, mut wishes: mpsc::Receiver<Wish>) {
    while let Some(wish) = wishes.recv().await {
        // To a command that has just ended, neither means anything.
        let _ = match wish {
            Wish::Resize(size) => control.resize(size).await,
            Wish::Signal(signal) => control.signal(signal, Target::Tree).await,
        };
    }
}

async fn hang_up(control: &dyn Control, signal: Signal, grace: Duration) {
    let _ = control.signal(signal.as_raw(), Target::Tree).await;
    tokio::time::sleep(grace).await;
    let _ = control.signal(Signal::KILL.as_raw(), Target::Tree).await;
}
