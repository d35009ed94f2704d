//! What is too large for the database and is kept as a whole: a file each. One that is half written is none.

use std::{
    io,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use cabana_model::SandboxId;
use futures_util::{Stream, TryStreamExt, stream};
use tokio::{
    fs::{self, File},
    io::{AsyncReadExt, AsyncWriteExt},
};

use crate::{Durability, Result};

const CHUNK: usize = 256 << 10;
/// The files of sandboxes that are packed away, by the provider's own ids.
#[derive(Clone)]
pub struct Blobs {
    dir: PathBuf,
    /// Where they are written. What is left there by a kill is nobody's.
    drafts: PathBuf,
    durability: Durability,
}

impl Blobs {
    /// In a directory that is there. What is being written lies in `drafts` beside it.
    pub fn at(dir: &Path, durability: Durability) -> Self {
        Self { dir: dir.into(), drafts: dir.with_file_name("drafts"), durability }
    }

    /// Blocks. Removes what a kill left half written.
    pub(crate) fn sweep(&self) -> io::Result<()> {
        for left in std::fs::read_dir(&self.drafts)? {
            std::fs::remove_file(left?.path())?;
        }
        Ok(())
    }

    fn path(&self, physical: &SandboxId) -> PathBuf {
        self.dir.join(physical.as_str())
    }

    /// Takes the place of an older one. What fails leaves that as it was. How long it is.
    pub async fn keep<E: From<crate::Error>>(
        &self,
        physical: &SandboxId,
        mut body: impl Stream<Item = Result<Bytes, E>> + Unpin,
    ) -> Result<u64, E> {
        let draft = self.drafts.join(physical.as_str());
        let io = |error: io::Error| E::from(error.into());
        let kept = async {
            let (mut file, mut length) = (File::create(&draft).await.map_err(io)?, 0);
            while let Some(bytes) = body.try_next().await? {
                file.write_all(&bytes).await.map_err(io)?;
                length += bytes.len() as u64;
            }
            file.flush().await.map_err(io)?;
            // What it was made from is removed next: it has to be on the disk whatever was asked for the rest.
            match self.durability {
                Durability::Kill => file.sync_data().await.map_err(io)?,
                Durability::Full => file.sync_all().await.map_err(io)?,
            }
            fs::rename(&draft, self.path(physical)).await.map_err(io)?;
            Ok(length)
        };
        let kept = kept.await;
        if kept.is_err() {
            let _ = fs::remove_file(&draft).await;
        }
        kept
    }

    /// In pieces. `None`: there is none.
    pub async fn read(&self, physical: &SandboxId) -> Result<Option<impl Stream<Item = io::Result<Bytes>> + use<>>> {
        let file = match File::open(self.path(physical)).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        Ok(Some(stream::try_unfold(file, |mut file| async move {
            let mut chunk = vec![0; CHUNK];
            let read = file.read(&mut chunk).await?;
            chunk.truncate(read);
            Ok((read > 0).then(|| (chunk.into(), file)))
        })))
    }

    /// Whose there are, and how long each is.
    pub async fn all(&self) -> Result<Vec<(SandboxId, u64)>> {
        let (mut entries, mut all) = (fs::read_dir(&self.dir).await?, Vec::new());
        while let Some(entry) = entries.next_entry().await? {
            let id = entry.file_name().into_string().ok().and_then(|name| SandboxId::new(name).ok());
            match (id, entry.metadata().await) {
                (Some(id), Ok(about)) => all.push((id, about.len())),
                (_, Err(error)) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => {} // a draft, or removed meanwhile
            }
        }
        Ok(all)
    }

    /// `None`: it was removed meanwhile.
    pub fn open_file(&self, physical: &SandboxId) -> io::Result<Option<std::fs::File>> {
        match std::fs::File::open(self.path(physical)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => file.map(Some),
        }
    }

    /// Of what a backup holds. There must be none.
    pub fn create_file(&self, physical: &SandboxId) -> io::Result<std::fs::File> {
        std::fs::File::create_new(self.path(physical))
    }

    pub async fn has(&self, physical: &SandboxId) -> bool {
        fs::try_exists(self.path(physical)).await.unwrap_or(true)
    }

    /// Absent is fine.
    pub async fn remove(&self, physical: &SandboxId) -> Result<()> {
        match fs::remove_file(self.path(physical)).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}
