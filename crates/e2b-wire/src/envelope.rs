//! The framing of Connect's streams: `[flags u8][length u32 BE][payload]`, one frame after the other.
//!
//! The reader takes bytes in whatever pieces the network cut them, and hands out whole frames. The length is a stranger's
//! word: a frame that is longer than the limit is refused as soon as its length is seen, and memory grows with the bytes that
//! came, not with those that were promised.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::connect;

const HEADER: usize = 5;
const MESSAGE: u8 = 0x00;
const COMPRESSED: u8 = 0x01;
const END: u8 = 0x02;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Message(Bytes),
    /// The last one. What it says is read by [`read_end`].
    End(Bytes),
}

/// Why a stream cannot be read. There is no way on from here: where the next frame begins is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    #[error("a frame of {length} bytes is longer than the {limit} that are allowed")]
    TooLong { length: u32, limit: u32 },
    #[error("a frame is compressed, and no compression was agreed on")]
    Compressed,
    #[error("a frame has unknown flags {0:#04x}")]
    UnknownFlags(u8),
    #[error("there are bytes after the end frame")]
    AfterEnd,
    #[error("the stream ends in the middle of a frame")]
    Truncated,
}

impl EnvelopeError {
    /// What a client is told.
    pub fn code(self) -> connect::Code {
        match self {
            Self::TooLong { .. } => connect::Code::ResourceExhausted,
            Self::Compressed => connect::Code::Unimplemented,
            Self::UnknownFlags(_) | Self::AfterEnd | Self::Truncated => connect::Code::InvalidArgument,
        }
    }
}

impl From<EnvelopeError> for connect::Error {
    fn from(error: EnvelopeError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

/// Takes pieces, gives frames.
///
/// ```
/// use bytes::Bytes;
/// use cabana_e2b_wire::envelope::{Frame, Reader};
///
/// let mut reader = Reader::new(1024);
/// let mut frames = Vec::new();
/// for piece in [&b"\0\0\0"[..], &b"\0\x02{"[..], &b"}"[..]] {
///     let mut piece = Bytes::from_static(piece);
///     while let Some(frame) = reader.read(&mut piece)? {
///         frames.push(frame);
///     }
/// }
/// reader.finish()?;
/// assert_eq!(frames, [Frame::Message(Bytes::from_static(b"{}"))]);
/// # Ok::<(), cabana_e2b_wire::envelope::EnvelopeError>(())
/// ```
pub struct Reader {
    limit: u32,
    at: At,
}

enum At {
    /// So many bytes of it are there.
    Header([u8; HEADER], usize),
    Payload {
        kind: Kind,
        length: usize,
        so_far: BytesMut,
    },
    End,
    Broken(EnvelopeError),
}

impl At {
    fn new_frame() -> Self {
        Self::Header([0; HEADER], 0)
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Message,
    End,
}

impl Reader {
    /// `limit` is the longest payload that is taken.
    pub fn new(limit: u32) -> Self {
        Self { limit, at: At::new_frame() }
    }

    /// Takes from the front of `piece` what belongs to the frame that is being read, and gives that frame once it is whole. The
    /// rest stays in `piece`: call again until there is none. `None` means that all of the piece was taken.
    pub fn read(&mut self, piece: &mut Bytes) -> Result<Option<Frame>, EnvelopeError> {
        let read = self.step(piece);
        if let Err(error) = read {
            self.at = At::Broken(error);
        }
        read
    }

    fn step(&mut self, piece: &mut Bytes) -> Result<Option<Frame>, EnvelopeError> {
        if let At::Header(header, have) = &mut self.at {
            let more = piece.split_to((HEADER - *have).min(piece.len()));
            header[*have..*have + more.len()].copy_from_slice(&more);
            *have += more.len();
            if *have == 0 {
                return Ok(None);
            }
            let [flags, length @ ..] = *header;
            // The flags come first: what they rule out need not be waited for.
            let kind = kind(flags)?;
            if *have < HEADER {
                return Ok(None);
            }
            let length = u32::from_be_bytes(length);
            if length > self.limit {
                return Err(EnvelopeError::TooLong { length, limit: self.limit });
            }
            self.at = At::Payload { kind, length: length as usize, so_far: BytesMut::new() };
        }
        match &mut self.at {
            At::Payload { kind, length, so_far } => {
                let missing = (*length - so_far.len()).min(piece.len());
                let payload = if so_far.is_empty() && missing == *length {
                    // It lies in the piece as a whole, which is usual: nothing is copied.
                    piece.split_to(missing)
                } else {
                    so_far.put(piece.split_to(missing));
                    if so_far.len() < *length {
                        return Ok(None);
                    }
                    std::mem::take(so_far).freeze()
                };
                let (frame, next) = match kind {
                    Kind::Message => (Frame::Message(payload), At::new_frame()),
                    Kind::End => (Frame::End(payload), At::End),
                };
                self.at = next;
                Ok(Some(frame))
            }
            At::End if piece.has_remaining() => Err(EnvelopeError::AfterEnd),
            At::End | At::Header(..) => Ok(None),
            At::Broken(error) => Err(*error),
        }
    }

    /// Whether the end frame was read.
    pub fn has_ended(&self) -> bool {
        matches!(self.at, At::End)
    }

    /// The stream is over: it must not be in the middle of a frame. A client's stream ends without an end frame.
    pub fn finish(self) -> Result<(), EnvelopeError> {
        match self.at {
            At::Header(_, 0) | At::End => Ok(()),
            At::Header(..) | At::Payload { .. } => Err(EnvelopeError::Truncated),
            At::Broken(error) => Err(error),
        }
    }
}

fn kind(flags: u8) -> Result<Kind, EnvelopeError> {
    match flags {
        MESSAGE => Ok(Kind::Message),
        END => Ok(Kind::End),
        flags if flags & !(COMPRESSED | END) == 0 => Err(EnvelopeError::Compressed),
        flags => Err(EnvelopeError::UnknownFlags(flags)),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("the message cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the message is longer than a frame can be")]
    TooLong,
}

/// A message as a frame.
pub fn message(message: &impl Serialize) -> Result<Bytes, WriteError> {
    let mut frame = vec![MESSAGE, 0, 0, 0, 0];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - HEADER).map_err(|_| WriteError::TooLong)?;
    frame[1..HEADER].copy_from_slice(&length.to_be_bytes());
    Ok(frame.into())
}

/// The last frame of an answer: all went well, or why not.
pub fn end(error: Option<&connect::Error>) -> Bytes {
    let payload = match error {
        None => "{}".to_owned(),
        Some(connect::Error { code, message }) => {
            // Made anew, since that bounds the message: the length always fits.
            let connect::Error { code, message } = connect::Error::new(*code, message.as_str());
            serde_json::json!({ "error": { "code": code.as_str(), "message": message } }).to_string()
        }
    };
    let mut frame = BytesMut::with_capacity(HEADER + payload.len());
    frame.put_u8(END);
    frame.put_u32(payload.len() as u32);
    frame.put(payload.as_bytes());
    frame.freeze()
}

/// What an end frame says: how the stream went.
pub fn read_end(payload: &[u8]) -> Result<Result<(), connect::Error>, serde_json::Error> {
    #[derive(Deserialize)]
    struct End {
        #[serde(default)]
        error: Option<connect::Error>,
    }
    let End { error } = serde_json::from_slice(payload)?;
    Ok(error.map_or(Ok(()), Err))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::{
        connect::Code,
        fuzzing::{envelope, in_pieces},
    };

    const LIMIT: u32 = 64;

    fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![flags];
        frame.extend((payload.len() as u32).to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn read_all(bytes: &[u8]) -> (Vec<Frame>, Result<(), EnvelopeError>) {
        let (mut reader, mut piece) = (Reader::new(LIMIT), Bytes::copy_from_slice(bytes));
        let mut frames = Vec::new();
        loop {
            match reader.read(&mut piece) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => return (frames, reader.finish()),
                Err(error) => return (frames, Err(error)),
            }
        }
    }

    fn refused(bytes: &[u8]) -> EnvelopeError {
        read_all(bytes).1.unwrap_err()
    }

    #[test]
    fn frames_are_read_one_after_the_other() {
        let bytes = [frame(0, b"{}"), frame(0, b""), frame(2, b"{}")].concat();
        let expected = [Frame::Message("{}".into()), Frame::Message("".into()), Frame::End("{}".into())];
        assert_eq!(read_all(&bytes), (expected.to_vec(), Ok(())));
    }

    #[test]
    fn a_length_that_is_too_long_is_refused_before_a_byte_of_its_payload() {
        let error = EnvelopeError::TooLong { length: u32::MAX, limit: LIMIT };
        assert_eq!(refused(b"\0\xff\xff\xff\xff"), error);
        let error = EnvelopeError::TooLong { length: LIMIT + 1, limit: LIMIT };
        assert_eq!(refused(&frame(0, &[b'x'; LIMIT as usize + 1])), error);
        assert_eq!(read_all(&frame(0, &[b'x'; LIMIT as usize])).1, Ok(()));
    }

    #[test]
    fn a_length_that_lies_takes_no_memory() {
        let mut reader = Reader::new(u32::MAX);
        assert_eq!(reader.read(&mut Bytes::from_static(b"\0\xff\xff\xff\xffabc")), Ok(None));
        let At::Payload { so_far, .. } = &reader.at else { panic!("it waits for the rest") };
        assert!(so_far.capacity() < 1024);
        assert_eq!(reader.finish(), Err(EnvelopeError::Truncated));
    }

    #[test]
    fn flags_are_judged_as_soon_as_they_are_there() {
        assert_eq!(refused(b"\x01"), EnvelopeError::Compressed);
        assert_eq!(refused(b"\x03"), EnvelopeError::Compressed);
        assert_eq!(refused(b"\x04"), EnvelopeError::UnknownFlags(4));
        assert_eq!(refused(b"\x81\0\0\0\0"), EnvelopeError::UnknownFlags(0x81));
        // JSON without an envelope, as a client that got it wrong sends it.
        assert_eq!(refused(b"{\"process\":{}}"), EnvelopeError::UnknownFlags(b'{'));
    }

    #[test]
    fn nothing_follows_the_end() {
        let bytes = [frame(2, b"{}"), frame(0, b"{}")].concat();
        assert_eq!(refused(&bytes), EnvelopeError::AfterEnd);
    }

    #[test]
    fn what_is_broken_stays_broken() {
        let mut reader = Reader::new(LIMIT);
        assert!(reader.read(&mut Bytes::from_static(b"\x01")).is_err());
        assert_eq!(reader.read(&mut Bytes::from_static(b"\0\0\0\0\0")), Err(EnvelopeError::Compressed));
        assert_eq!(reader.finish(), Err(EnvelopeError::Compressed));
    }

    #[test]
    fn every_cut_within_a_frame_is_noticed() {
        let bytes = frame(0, b"{\"a\":1}");
        for end in 1..bytes.len() {
            assert_eq!(refused(&bytes[..end]), EnvelopeError::Truncated, "cut at {end}");
        }
        assert_eq!(read_all(b""), (vec![], Ok(())));
    }

    #[test]
    fn what_is_written_is_as_clients_expect_it() {
        let written = message(&serde_json::json!({"event": {"keepalive": {}}})).unwrap();
        assert_eq!(&*written, b"\0\0\0\0\x1a{\"event\":{\"keepalive\":{}}}");
        assert_eq!(&*end(None), b"\x02\0\0\0\x02{}");
        let error = connect::Error::new(Code::NotFound, "process with pid 7 not found");
        let expected = br#"{"error":{"code":"not_found","message":"process with pid 7 not found"}}"#;
        assert_eq!(&*end(Some(&error)), frame(2, expected));
    }

    #[test]
    fn an_end_frame_reads_back() {
        assert_eq!(read_end(b"{}").unwrap(), Ok(()));
        assert_eq!(read_end(br#"{"metadata":{"x":["y"]},"error":null}"#).unwrap(), Ok(()));
        let error = connect::Error::new(Code::Unavailable, "gone \u{1F3D6} \"quoted\"\n");
        assert_eq!(read_end(&end(Some(&error))[HEADER..]).unwrap(), Err(error));
        assert!(read_end(b"").is_err());
    }

    #[test]
    fn an_error_that_is_far_too_long_still_fits() {
        let error = connect::Error { code: Code::Internal, message: "\u{1}".repeat(1 << 20) };
        let frame = end(Some(&error));
        assert!(frame.len() < 128 * 1024);
        assert!(read_end(&frame[HEADER..]).unwrap().is_err());
    }

    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let payload = || vec(any::<u8>(), 0..=LIMIT as usize);
        (vec(payload(), 0..6), proptest::option::of(payload())).prop_map(|(messages, end)| {
            let messages = messages.iter().flat_map(|payload| frame(0, payload));
            messages.chain(end.iter().flat_map(|payload| frame(2, payload))).collect()
        })
    }

    proptest! {
        #[test]
        fn any_split_of_any_frames_gives_the_same_frames(bytes in frames(), cuts in vec(any::<usize>(), 0..12)) {
            prop_assert_eq!(read_all(&bytes).1, Ok(()));
            in_pieces(&bytes, &cuts, LIMIT);
        }

        #[test]
        fn any_split_of_anything_fails_alike(
            bytes in vec(prop_oneof![4 => 0..4_u8, 1 => any::<u8>()], 0..64),
            cuts in vec(any::<usize>(), 0..12),
        ) {
            in_pieces(&bytes, &cuts, 3);
        }

        #[test]
        fn what_the_fuzzer_throws_is_taken(bytes in vec(prop_oneof![2 => 0..4_u8, 1 => any::<u8>()], 0..64)) {
            envelope(&bytes);
        }

        #[test]
        fn a_message_reads_back(text in ".*") {
            let written = message(&text).unwrap();
            let (mut reader, mut piece) = (Reader::new(u32::MAX), written);
            let Ok(Some(Frame::Message(payload))) = reader.read(&mut piece) else { panic!("no message") };
            prop_assert_eq!(serde_json::from_slice::<String>(&payload).unwrap(), text);
            prop_assert!(piece.is_empty());
        }
    }
}
