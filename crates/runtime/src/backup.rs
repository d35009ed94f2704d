//! A backup of all that a server has, taken while it serves, and a data directory made of one.
//!
//! The database comes first, as it is at one moment; then outputs; then the sandboxes, each as it is at a moment of its own. So
//! what is in a sandbox may be newer than what the record of calls says, by as long as the backup took, and never older. A new
//! server finds a restored directory as it finds one after the machine was started anew: every sandbox is stopped, and what was
//! under way is unknown.

mod container;
mod restore;

use std::{collections::HashSet, fs::File, io::Read, sync::Arc};

use bytes::Bytes;
use cabana_sandbox::{Error as SandboxError, SandboxId, Stream};
use cabana_store::Outputs;
use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc;

#[cfg(fuzzing)]
pub use self::container::fuzz;
pub use self::{
    container::{Container, Part},
    restore::{Restored, restore},
};

use self::container::Framer;
use crate::{Error, Result, Runtime};

/// How much of a file is read at once.
const PIECE: usize = 256 << 10;

type Sent = Result<Bytes, SandboxError>;

impl Runtime {
    /// It goes on as fast as it is read. Whoever stops reading ends it.
    pub(crate) async fn backup(&self) -> Result<Stream<Bytes>> {
        let data = self.0.settings.data.as_ref();
        let data =
            data.ok_or(SandboxError::Unsupported { provider: "server", what: "backups without a data directory" })?;
        // Before the first byte: what cannot be done is refused.
        let database = self.0.store.copy_database().await?;
        let key =
            File::open(data.join("admin.key")).map_err(|error| SandboxError::failed("opening the first key", error))?;
        let left_out = Arc::new(|what: &str| tracing::warn!(what, "left out of a backup"));
        let sandboxes = self.0.sandboxes.provider().save_all(left_out).await?;
        let (send, receive) = mpsc::channel(4);
        let runtime = self.clone();
        self.0.tasks.spawn(async move {
            let (framer, line) = Framer::begin();
            let mut writer = Writer { framer, send: send.clone() };
            let written = async {
                writer.send(line).await?;
                writer.all(&runtime, key, database, sandboxes).await
            };
            let failed = match runtime.0.closing.run_until_cancelled(written).await {
                Some(Ok(())) => return,
                Some(Err(error)) => error,
                None => Error::Left,
            };
            tracing::warn!(error = %failed, "a backup broke off");
            let _ = send.send(Err(SandboxError::failed("the backup", failed))).await;
        });
        let all = stream::unfold(receive, |mut receive| async { receive.recv().await.map(|next| (next, receive)) });
        Ok(all.boxed())
    }
}

struct Writer {
    framer: Framer,
    send: mpsc::Sender<Sent>,
}

impl Writer {
    async fn all(&mut self, runtime: &Runtime, key: File, database: File, sandboxes: Stream<Bytes>) -> Result<()> {
        self.file(Part::Key, key).await?;
        self.file(Part::Database, database).await?;
        let (store, mut count) = (runtime.store().outputs(), 0);
        for folder in Outputs::folders() {
            for name in store.files(folder).await? {
                let opened =
                    store.open_file(&name).map_err(|error| SandboxError::failed("opening an output", error))?;
                if let Some(file) = opened {
                    self.file(Part::Output { name: name.as_str().to_owned() }, file).await?;
                    count += 1;
                }
            }
        }
        // Before the sandboxes, since one that is brought back meanwhile loses its archive; and once more after them, since one
        // that is packed away meanwhile has one then.
        let mut archived = HashSet::new();
        count += self.archives(runtime, &mut archived).await?;
        self.stream(Part::Sandboxes, sandboxes).await?;
        count += self.archives(runtime, &mut archived).await?;
        self.part(&Part::End { files: count }).await?;
        self.end().await
    }

    async fn archives(&mut self, runtime: &Runtime, had: &mut HashSet<SandboxId>) -> Result<u64> {
        let (blobs, mut count) = (runtime.store().blobs(), 0);
        for (id, _) in blobs.all().await? {
            if had.contains(&id) {
                continue;
            }
            let opened = blobs.open_file(&id).map_err(|error| SandboxError::failed("opening an archive", error))?;
            if let Some(file) = opened {
                self.file(Part::Archive { of: id.to_string() }, file).await?;
                had.insert(id);
                count += 1;
            }
        }
        Ok(count)
    }

    /// As long as it is now: what is written to it meanwhile is in no backup.
    async fn file(&mut self, part: Part, file: File) -> Result<()> {
        let failed = |error: std::io::Error| SandboxError::failed("reading for a backup", error);
        let mut rest = file.metadata().map_err(failed)?.len();
        self.part(&part).await?;
        let mut file = Some(file);
        while let Some(from) = file.take() {
            let most = usize::try_from(rest).unwrap_or(PIECE).min(PIECE);
            let read = tokio::task::spawn_blocking(move || {
                let (mut from, mut piece) = (from, Vec::with_capacity(most));
                (&mut from).take(most as u64).read_to_end(&mut piece)?;
                std::io::Result::Ok((from, piece))
            });
            let read = read.await.map_err(|error| SandboxError::failed("reading for a backup", error))?;
            let (from, piece) = read.map_err(failed)?;
            if piece.is_empty() {
                break;
            }
            rest -= piece.len() as u64;
            self.piece(&piece).await?;
            file = Some(from);
        }
        self.end().await
    }

    async fn stream(&mut self, part: Part, mut from: Stream<Bytes>) -> Result<()> {
        self.part(&part).await?;
        while let Some(piece) = from.try_next().await? {
            self.piece(&piece).await?;
        }
        self.end().await
    }

    async fn part(&mut self, part: &Part) -> Result<()> {
        let frame = self.framer.part(part)?;
        self.send(frame).await
    }

    async fn piece(&mut self, piece: &[u8]) -> Result<()> {
        for frame in self.framer.piece(piece) {
            self.send(frame).await?;
        }
        Ok(())
    }

    async fn end(&mut self) -> Result<()> {
        let frame = self.framer.end();
        self.send(frame).await
    }

    async fn send(&mut self, bytes: Bytes) -> Result<()> {
        self.send.send(Ok(bytes)).await.map_err(|_| Error::Cancelled)
    }
}
