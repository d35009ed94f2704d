//! The digest of what passes by, of any length.

use std::sync::Arc;

use bytes::Bytes;
use cabana_sandbox::{Error, Result, Stream};
use futures_util::{StreamExt, TryStreamExt};
use sha2::{Digest, Sha256};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinHandle,
};

/// What is longer is hashed on another thread, while this one reads and writes: hashing is half of that work.
const LITTLE: usize = 256 << 10;
/// How many pieces may wait there.
const WAIT: usize = 8;

/// The same, and what is known of it when it has passed.
pub(crate) fn hashed(body: Stream<Bytes>) -> (Stream<Bytes>, Passed) {
    let passed = Arc::<Mutex<Hashing>>::default();
    let hashing = passed.clone();
    let body = body.and_then(move |bytes| {
        let hashing = hashing.clone();
        async move { hashing.lock().await.add(bytes.clone()).await.map(|()| bytes) }
    });
    (body.boxed(), Passed(passed))
}

pub(crate) struct Passed(Arc<Mutex<Hashing>>);

impl Passed {
    pub(crate) async fn digest(self) -> Result<[u8; 32]> {
        std::mem::take(&mut *self.0.lock().await).end().await
    }
}

/// Of what nobody else wants.
pub(crate) async fn digest(mut body: Stream<Bytes>) -> Result<[u8; 32]> {
    let mut hashing = Hashing::default();
    while let Some(bytes) = body.try_next().await? {
        hashing.add(bytes).await?;
    }
    hashing.end().await
}

enum Hashing {
    Here(Sha256, usize),
    Beside(mpsc::Sender<Bytes>, JoinHandle<Sha256>),
}

impl Default for Hashing {
    fn default() -> Self {
        Self::Here(Sha256::new(), 0)
    }
}

impl Hashing {
    async fn add(&mut self, bytes: Bytes) -> Result<()> {
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

    async fn end(self) -> Result<[u8; 32]> {
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
            let parts: Vec<Bytes> = (0..pieces).map(|n| vec![n as u8; length].into()).collect();
            let body = || futures_util::stream::iter(parts.clone()).map(Ok).boxed();
            let whole: [u8; 32] = Sha256::digest(parts.concat()).into();
            assert_eq!(digest(body()).await.unwrap(), whole, "{pieces} of {length}");
            let (body, passed) = hashed(body());
            assert_eq!(body.try_collect::<Vec<Bytes>>().await.unwrap(), parts);
            assert_eq!(passed.digest().await.unwrap(), whole, "{pieces} of {length}");
        }
    }
}
