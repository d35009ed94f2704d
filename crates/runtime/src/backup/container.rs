//! A backup as bytes: a line that says so, then sections in frames.
//!
//! A frame is a length of four bytes, so many bytes, and a digest over them and the digest before: what was damaged is noticed
//! before it is acted on. The first frame of a section says what it is, as JSON; an empty frame ends it. The last section says
//! that it is the last, so that a backup that was cut off is known.

use bytes::Bytes;
use cabana_sandbox::Error;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt};

const LINE: &[u8] = b"cabana backup 1\n";
const FRAME: usize = 256 << 10;
const DIGEST: usize = 32;

/// What a section holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Part {
    /// The first key, as it is in its file.
    Key,
    Database,
    /// One file of an output.
    Output {
        name: String,
    },
    /// The archive of one sandbox, by the provider's own id.
    Archive {
        of: String,
    },
    /// As the provider saved them.
    Sandboxes,
    /// Nothing comes after it.
    End {
        files: u64,
    },
}

/// Makes frames of what is to be written.
pub(super) struct Framer {
    digest: [u8; DIGEST],
}

impl Framer {
    pub(super) fn begin() -> (Self, Bytes) {
        (Self { digest: [0; DIGEST] }, Bytes::from_static(LINE))
    }

    /// What begins a section.
    pub(super) fn part(&mut self, part: &Part) -> Result<Bytes, Error> {
        let text = serde_json::to_vec(part).map_err(|error| Error::failed("writing a backup", error))?;
        Ok(self.frame(&text))
    }

    /// A piece of it, in as many frames as it needs.
    pub(super) fn piece(&mut self, bytes: &[u8]) -> Vec<Bytes> {
        bytes.chunks(FRAME).map(|chunk| self.frame(chunk)).collect()
    }

    pub(super) fn end(&mut self) -> Bytes {
        self.frame(&[])
    }

    fn frame(&mut self, bytes: &[u8]) -> Bytes {
        let length = (bytes.len() as u32).to_le_bytes();
        self.digest = next(&self.digest, length, bytes);
        [&length[..], bytes, &self.digest].concat().into()
    }
}

fn next(before: &[u8; DIGEST], length: [u8; 4], bytes: &[u8]) -> [u8; DIGEST] {
    Sha256::new().chain_update(before).chain_update(length).chain_update(bytes).finalize().into()
}

/// Reads sections one after the other, without believing a byte that no digest has vouched for.
pub struct Container<R> {
    input: R,
    digest: [u8; DIGEST],
    /// Whether the section that is being read has come to its end.
    ended: bool,
}

impl<R: AsyncRead + Unpin> Container<R> {
    pub async fn open(mut input: R) -> Result<Self, Error> {
        let mut line = [0; LINE.len()];
        input.read_exact(&mut line).await.map_err(|_| bad("it is no backup, or it was cut off"))?;
        match line == *LINE {
            true => Ok(Self { input, digest: [0; DIGEST], ended: true }),
            false if line.starts_with(b"cabana backup ") => {
                Err(bad("it was made by a version that this one does not know"))
            }
            false => Err(bad("it is no backup")),
        }
    }

    /// The next section; the one before was read to its end.
    pub async fn part(&mut self) -> Result<Part, Error> {
        if !self.ended {
            return Err(bad("a part of it is longer than what it holds"));
        }
        let said = self.frame().await?;
        self.ended = false;
        serde_json::from_slice(&said).map_err(|error| bad(format!("what it says of itself is damaged: {error}")))
    }

    /// The next piece of the section; `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, Error> {
        if self.ended {
            return Ok(None);
        }
        let bytes = self.frame().await?;
        self.ended = bytes.is_empty();
        Ok((!self.ended).then_some(bytes))
    }

    /// Nothing may come after the last section.
    pub async fn end(mut self) -> Result<(), Error> {
        match self.input.read(&mut [0; 1]).await {
            Ok(0) => Ok(()),
            Ok(_) => Err(bad("something follows its end")),
            Err(error) => Err(Error::failed("reading the backup", error)),
        }
    }

    async fn frame(&mut self) -> Result<Bytes, Error> {
        let length = self.fill([0; 4]).await?;
        let size = u32::from_le_bytes(length) as usize;
        if size > FRAME {
            return Err(bad("it is damaged: a part of it is larger than can be"));
        }
        let bytes = self.fill(vec![0; size]).await?;
        let told = self.fill([0; DIGEST]).await?;
        self.digest = next(&self.digest, length, &bytes);
        if self.digest != told {
            return Err(bad("it is damaged: a digest does not fit"));
        }
        Ok(bytes.into())
    }

    async fn fill<B: AsMut<[u8]>>(&mut self, mut into: B) -> Result<B, Error> {
        match self.input.read_exact(into.as_mut()).await {
            Ok(_) => Ok(into),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                Err(bad("it ends before its end: it was cut off"))
            }
            Err(error) => Err(Error::failed("reading the backup", error)),
        }
    }
}

pub(super) fn bad(why: impl Into<String>) -> Error {
    Error::Archive(why.into())
}

/// What the fuzz target throws bytes at: as they are, and as frames whose digests are right, each with its length before it.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    let (mut framer, line) = Framer::begin();
    let (mut framed, mut rest) = (line.to_vec(), bytes);
    while let Some((length, after)) = rest.split_first() {
        let (frame, left) = after.split_at(usize::from(*length).min(after.len()));
        framed.extend_from_slice(&framer.frame(frame));
        rest = left;
    }
    for bytes in [bytes, &framed] {
        let reading = async {
            let mut container = Container::open(bytes).await?;
            loop {
                let part = container.part().await?;
                if let Part::Output { name } = &part
                    && let Some(file) = cabana_store::OutputFile::new(name)
                {
                    assert!(file.as_str().len() <= 40 && !file.as_str().contains(".."), "{name} leads elsewhere");
                }
                while container.piece().await?.is_some() {}
                if let Part::End { .. } = part {
                    return container.end().await;
                }
            }
        };
        let read: Option<Result<(), Error>> = futures_util::FutureExt::now_or_never(reading);
        assert!(read.is_some(), "bytes that are there are waited for");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(parts: &[(Part, Vec<Vec<u8>>)]) -> Vec<u8> {
        let (mut framer, begin) = Framer::begin();
        let mut all = begin.to_vec();
        for (part, pieces) in parts {
            all.extend_from_slice(&framer.part(part).unwrap());
            for piece in pieces {
                framer.piece(piece).iter().for_each(|frame| all.extend_from_slice(frame));
            }
            all.extend_from_slice(&framer.end());
        }
        all
    }

    async fn read(bytes: &[u8]) -> Result<Vec<(Part, Vec<u8>)>, Error> {
        let mut container = Container::open(bytes).await?;
        let mut found = Vec::new();
        loop {
            let part = container.part().await?;
            let mut whole = Vec::new();
            while let Some(piece) = container.piece().await? {
                whole.extend_from_slice(&piece);
            }
            let last = matches!(part, Part::End { .. });
            found.push((part, whole));
            if last {
                container.end().await?;
                return Ok(found);
            }
        }
    }

    fn now<T>(future: impl Future<Output = T>) -> T {
        futures_util::FutureExt::now_or_never(future).unwrap()
    }

    fn part() -> impl Strategy<Value = Part> {
        prop_oneof![
            Just(Part::Key),
            Just(Part::Database),
            Just(Part::Sandboxes),
            "\\PC{0,20}".prop_map(|name| Part::Output { name }),
        ]
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_and_whatever_was_cut_or_changed_is_refused(
            parts in prop::collection::vec((part(), prop::collection::vec(prop::collection::vec(any::<u8>(), 1..50), 0..4)), 0..4),
            at in any::<prop::sample::Index>(),
            flip in 1..=255u8,
        ) {
            let mut parts = parts;
            parts.push((Part::End { files: 3 }, Vec::new()));
            let bytes = written(&parts);
            let whole: Vec<_> = parts.into_iter().map(|(part, pieces)| (part, pieces.concat())).collect();
            prop_assert_eq!(now(read(&bytes)).unwrap(), whole);

            let at = at.index(bytes.len());
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            prop_assert!(matches!(now(read(&changed)), Err(Error::Archive(_))));
            prop_assert!(matches!(now(read(&bytes[..at])), Err(Error::Archive(_))));
            let mut longer = bytes;
            longer.push(0);
            prop_assert!(matches!(now(read(&longer)), Err(Error::Archive(_))));
        }

        #[test]
        fn whatever_comes_nothing_breaks(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut named = LINE.to_vec();
            named.extend_from_slice(&bytes);
            prop_assert!(now(read(&bytes)).is_err());
            prop_assert!(now(read(&named)).is_err());
        }
    }

    #[test]
    fn a_long_piece_is_many_frames() {
        let long = vec![7; 2 * FRAME + 1];
        let bytes = written(&[(Part::Database, vec![long.clone()]), (Part::End { files: 0 }, Vec::new())]);
        assert_eq!(now(read(&bytes)).unwrap()[0].1, long);
    }
}
