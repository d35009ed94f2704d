//! One command to its end, with as much of its output as the caller wants to keep.

use std::collections::VecDeque;

use futures_util::StreamExt;
use tokio::io::AsyncWriteExt;

use crate::{Channel, Error, Event, ExecSpec, Exit, Result, Sandbox};

#[derive(Debug)]
pub struct ExecOutcome {
    pub exit: Exit,
    /// What a terminal shows is here too: it has one channel.
    pub stdout: Kept,
    pub stderr: Kept,
}

/// The beginning and the end of an output, and how long it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub head: Vec<u8>,
    /// Follows the head, or comes after what was left out.
    pub tail: Vec<u8>,
    pub total: u64,
}

impl Kept {
    /// All of it, if nothing was left out.
    pub fn whole(&self) -> Option<Vec<u8>> {
        (self.left_out() == 0).then(|| [self.head.as_slice(), self.tail.as_slice()].concat())
    }

    /// How many bytes lie between the head and the tail.
    pub fn left_out(&self) -> u64 {
        self.total - (self.head.len() + self.tail.len()) as u64
    }
}

/// Runs the command to its end and keeps the first and the last `keep` bytes of each channel. Input is closed at once.
///
/// Dropping the future ends the waiting, not the command.
pub async fn run(sandbox: &dyn Sandbox, spec: ExecSpec, keep: usize) -> Result<ExecOutcome> {
    let mut process = sandbox.exec(spec).await?;
    if let Some(mut stdin) = process.stdin.take() {
        // A command that is gone already has closed its end: that is no failure of ours.
        let _ = stdin.shutdown().await;
    }
    let (mut stdout, mut stderr) = (Keeper::new(keep), Keeper::new(keep));
    while let Some(event) = process.events.next().await {
        match event? {
            Event::Output(output) => match output.channel {
                Channel::Stdout | Channel::Terminal => stdout.push(&output.bytes),
                Channel::Stderr => stderr.push(&output.bytes),
            },
            Event::Exit(exit) => return Ok(ExecOutcome { exit, stdout: stdout.done(), stderr: stderr.done() }),
        }
    }
    Err(Error::failed("waiting for the command", "its output ended without an exit"))
}

/// Never holds more than twice `keep`, however much is pushed.
struct Keeper {
    keep: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl Keeper {
    fn new(keep: usize) -> Self {
        Self { keep, head: Vec::new(), tail: VecDeque::new(), total: 0 }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (head, rest) = bytes.split_at(bytes.len().min(self.keep - self.head.len()));
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(self.keep)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(self.keep);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    fn done(self) -> Kept {
        Kept { head: self.head, tail: self.tail.into(), total: self.total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn kept(keep: usize, chunks: &[Vec<u8>]) -> Kept {
        let mut keeper = Keeper::new(keep);
        chunks.iter().for_each(|chunk| keeper.push(chunk));
        keeper.done()
    }

    proptest! {
        #[test]
        fn the_first_and_the_last_bytes_are_kept_however_they_come(
            keep in 0usize..20,
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 0..8),
        ) {
            let all = chunks.concat();
            let kept = kept(keep, &chunks);
            prop_assert_eq!(kept.total, all.len() as u64);
            prop_assert_eq!(&kept.head, &all[..all.len().min(keep)]);
            prop_assert_eq!(&kept.tail, &all[all.len().min(keep).max(all.len().saturating_sub(keep))..]);
            prop_assert_eq!(kept.whole(), (all.len() <= 2 * keep).then_some(all));
        }
    }
}
