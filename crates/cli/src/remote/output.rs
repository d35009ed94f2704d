//! What a command says, on our own two outputs.

use std::io;

use cabana_model::Code;
use tokio::{fs::File, io::AsyncWriteExt};

use super::sse::{Event, Said};
use crate::{failure::Failure, run::Ends};

pub(super) struct Output {
    stdout: (File, u64),
    stderr: (File, u64),
}

/// Why no more can be shown.
pub(super) enum Stuck {
    /// A command that writes to a closed pipe dies of it.
    NobodyReads,
    Failed(Failure),
}

impl From<Failure> for Stuck {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Output {
    pub(super) fn ours() -> Result<Self, Failure> {
        let ends = Ends::ours(false);
        let Ends { stdout, stderr, .. } =
            ends.map_err(|error| Failure::new(Code::Internal, format!("opening standard output: {error}")))?;
        Ok(Self { stdout: (stdout, 0), stderr: (stderr, 0) })
    }

    /// Shows a chunk, without what was shown before: a stream that is asked for again begins at its beginning. `false` if
    /// the event is none.
    pub(super) async fn show(&mut self, event: &Event) -> Result<bool, Stuck> {
        let (end, shown) = match event.name.as_str() {
            "stdout" => &mut self.stdout,
            "stderr" => &mut self.stderr,
            _ => return Ok(false),
        };
        let said: Said = event.read()?;
        let (offset, bytes) = (said.offset, said.bytes()?);
        let known = usize::try_from(shown.saturating_sub(offset)).unwrap_or(usize::MAX).min(bytes.len());
        write(end, &bytes[known..]).await?;
        *shown = (*shown).max(offset + bytes.len() as u64);
        Ok(true)
    }

    pub(super) async fn write(&mut self, stderr: bool, bytes: &[u8]) -> Result<(), Stuck> {
        write(if stderr { &mut self.stderr.0 } else { &mut self.stdout.0 }, bytes).await
    }
}

async fn write(end: &mut File, bytes: &[u8]) -> Result<(), Stuck> {
    let written = match end.write_all(bytes).await {
        Ok(()) => end.flush().await,
        Err(error) => Err(error),
    };
    written.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Stuck::NobodyReads,
        _ => Stuck::Failed(Failure::new(Code::Internal, format!("writing the output: {error}"))),
    })
}
