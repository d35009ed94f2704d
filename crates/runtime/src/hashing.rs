//! The digest of what passes by, of any length.

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::{sync::mpsc, task::JoinHandle};

use cabana_sandbox::{Error, Result};

/// What is longer is hashed on another thread, while this one reads and writes: hashing is half of that work.
const LITTLE: usize = 256 << 10;
/// How many pieces may wait there.
const WAIT: usize = 8;

pub(crate) enum Hashing {
    Here(Sha256, usize),
    Beside(mpsc::Sender<Bytes>, JoinHandle<Sha256>),
}

impl Default for Hashing {
    fn default() -> Self {
        Self::Here(Sha256::new(), 0)
    }
}

impl Hashing {
    pub(crate) async fn add(&mut self, bytes: Bytes) -> Result<()> {
        if let Self::Here(digest, length) = self {
            *length += bytes.len();
            if *length <= LITTLE {
                digest.update(&bytes);
                return Ok(());
            }
            let (mut digest, (to, mut pieces)) = (std::mem::take(digest), mpsc::channel::<Bytes>(WAIT));
            let rest = move || {
                while let Some(piece) = pieces.blocking_recv() {
                    digest.update(&piece);
                }
                digest
            };
            *self = Self::Beside(to, tokio::task::spawn_blocking(rest));
        }
        if let Self::Beside(to, _) = self {
            to.send(bytes).await.map_err(|_| broke_off())?;
        }
        Ok(())
    }

    pub(crate) async fn end(self) -> Result<[u8; 32]> {
        let digest = match self {
            Self::Here(digest, _) => digest,
            Self::Beside(to, rest) => {
                drop(to);
                rest.await.map_err(|_| broke_off())?
            }
        };
        Ok(digest.finalize().into())
    }
}

fn broke_off() -> Error {
    Error::failed("hashing what was sent", "it broke off")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pieces_of_any_length_have_the_digest_of_the_whole() {
        for (pieces, length) in [(0, 0), (3, 10), (2, LITTLE / 2), (2, LITTLE), (40, 100_003)] {
            let (mut hashing, mut whole) = (Hashing::default(), Sha256::new());
            for n in 0..pieces {
                let piece = vec![n as u8; length];
                whole.update(&piece);
                hashing.add(piece.into()).await.unwrap();
            }
            assert_eq!(hashing.end().await.unwrap(), <[u8; 32]>::from(whole.finalize()), "{pieces} of {length}");
        }
    }
}
