//! What is done to a command in the background while it runs. Which one is meant, its sandbox says: a task of another sandbox is
//! none.

use bytes::Bytes;
use cabana_model::TaskId;
use cabana_sandbox::{Stream, Target, TermSize};
use futures_util::TryStreamExt;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use crate::{
    Act, Cx, Error, Needs, Result,
    tasks::{Hands, LiveTask},
};

fn found(cx: &Cx, id: TaskId) -> Result<(LiveTask, Hands)> {
    let place = (cx.caller.tenant.clone(), cx.record()?.id.clone());
    let live = cx.runtime.0.live_tasks.get(id).filter(|live| live.place == place).ok_or(Error::NoTask(id))?;
    let hands = live.hands.clone().ok_or(Error::NoTask(id))?;
    Ok((live, hands))
}

/// Types, as it comes. A command that does not read holds up whoever types, until it ends.
pub struct Feed {
    pub task: TaskId,
    pub body: Stream<Bytes>,
    /// How much of the body may be in memory.
    pub held: usize,
}

impl Act for Feed {
    const VERB: &'static str = "task.input";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Running
    }

    /// Of what is known before the body comes.
    fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.task.to_string()).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![self.task.to_string()]
    }

    fn held_bytes(&self) -> usize {
        self.held
    }

    fn stores(&self) -> bool {
        false
    }

    async fn run(mut self, cx: Cx) -> Result<()> {
        let (mut live, hands) = found(&cx, self.task)?;
        let _input = hands.take_input()?;
        let cancelled = cx.cancel.clone();
        let typing = async {
            while let Some(bytes) = self.body.try_next().await? {
                let mut stdin = hands.stdin.lock().await;
                let stdin = stdin.as_mut().ok_or_else(closed)?;
                stdin.write_all(&bytes).await.map_err(|_| closed())?;
            }
            Ok(())
        };
        tokio::select! {
            typed = typing => typed,
            _ = live.ended.wait_for(Option::is_some) => Err(Error::NoTask(self.task)),
            () = cancelled.cancelled() => Err(Error::Cancelled),
        }
    }
}

fn closed() -> Error {
    Error::invalid("input", "the command has none, or it was closed")
}

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

pub struct Tell {
    pub task: TaskId,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// That its input is at an end.
    Close,
    /// That its terminal has another size.
    Resize(TermSize),
    Signal(i32, Target),
}

impl Act for Tell {
    const VERB: &'static str = "task.tell";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(format!("{} {:?}", self.task, self.what)).into()
    }

    fn argv(&self) -> Vec<String> {
        let what = match self.what {
            What::Close => "close".to_owned(),
            What::Resize(TermSize { cols, rows }) => format!("resize {cols}x{rows}"),
            What::Signal(signal, _) => format!("signal {signal}"),
        };
        vec![self.task.to_string(), what]
    }

    fn stores(&self) -> bool {
        false
    }

    fn removes(&self) -> bool {
        matches!(self.what, What::Signal(SIGKILL | SIGTERM, _))
    }

    async fn run(self, cx: Cx) -> Result<()> {
        let (mut live, hands) = found(&cx, self.task)?;
        match self.what {
            What::Resize(size) => hands.control.resize(size).await?,
            What::Signal(signal, to) => {
                hands.control.signal(signal, to).await?;
                // A command may ignore it, without end.
                cx.note(|notes| notes.is_void = signal != SIGKILL && live.ended.borrow().is_none());
            }
            What::Close => {
                let _close = hands.take_close()?;
                let closing = async {
                    let mut stdin = hands.stdin.lock().await.take().ok_or_else(closed)?;
                    let _ = stdin.shutdown().await; // a command that is gone has closed its end
                    Ok::<_, Error>(())
                };
                // Somebody may be typing to one that does not read.
                tokio::select! {
                    closed = closing => closed?,
                    _ = live.ended.wait_for(Option::is_some) => return Err(Error::NoTask(self.task)),
                    () = cx.cancel.cancelled() => return Err(Error::Cancelled),
                }
            }
        }
        Ok(())
    }
}
