//! What the fuzz targets throw bytes at: the envelope's reader, held against a second one that has all bytes at once; and what is
//! read from queries and headers.

use bytes::Bytes;

use crate::{
    SandboxHost,
    envelope::{EnvelopeError, Frame, Reader},
    header,
    metadata::{key_of_header, read_filter, write_filter},
    signature::{Grant, Operation},
};

/// A text that came in a query or a header. What was read of it is written so that the same is read again.
pub fn texts(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(filter) = read_filter(text) {
        assert_eq!(read_filter(&write_filter(&filter)), Ok(filter));
    }
    if let Some(user) = header::user_of_authorization(text) {
        assert_eq!(header::user_of_authorization(&header::authorization_of_user(&user)), Some(user));
    }
    if let Some(host) = SandboxHost::parse(text, "sandboxes.test") {
        assert_eq!(SandboxHost::parse(&host.under("sandboxes.test"), "sandboxes.test"), Some(host));
    }
    let _ = key_of_header(text);
    let (path, rest) = text.split_once('\n').unwrap_or((text, ""));
    let read = Grant { path, operation: Operation::Read, user: Some(rest), expiration: None };
    let write = Grant { operation: Operation::Write, ..read };
    let now = jiff::Timestamp::UNIX_EPOCH;
    assert_eq!(read.verify("token", Some(&read.sign("token")), now), Ok(()));
    assert!(write.verify("token", Some(&read.sign("token")), now).is_err(), "who may read may not write");
    assert!(read.verify("token", Some(rest), now).is_err(), "nobody guesses a signature");
}

/// The first byte says how long a frame may be, the second how many of the following bytes are places to cut at.
pub fn envelope(bytes: &[u8]) {
    let [limit, cuts, rest @ ..] = bytes else { return };
    let (cuts, rest) = rest.split_at(usize::from(*cuts % 16).min(rest.len()));
    let cuts = cuts.iter().map(|cut| usize::from(*cut)).collect::<Vec<_>>();
    in_pieces(rest, &cuts, u32::from(*limit));
}

/// However the bytes are cut, the frames are the same, and so is what is wrong with them.
pub fn in_pieces(bytes: &[u8], cuts: &[usize], limit: u32) {
    let expected = at_once(bytes, limit);
    assert_eq!(read([Bytes::copy_from_slice(bytes)], limit), expected, "as a whole");
    let one_by_one = bytes.iter().map(|byte| Bytes::copy_from_slice(&[*byte]));
    assert_eq!(read(one_by_one, limit), expected, "byte by byte");
    let mut cuts = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect::<Vec<_>>();
    cuts.sort_unstable();
    let ends = cuts.iter().copied().chain([bytes.len()]);
    let starts = [0].into_iter().chain(cuts.iter().copied());
    let pieces = starts.zip(ends).map(|(start, end)| Bytes::copy_from_slice(&bytes[start..end]));
    assert_eq!(read(pieces, limit), expected, "cut at {cuts:?}");
}

type Outcome = (Vec<Frame>, Result<(), EnvelopeError>);

fn read(pieces: impl IntoIterator<Item = Bytes>, limit: u32) -> Outcome {
    let (mut reader, mut frames) = (Reader::new(limit), Vec::new());
    for mut piece in pieces {
        loop {
            match reader.read(&mut piece) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Err(error)),
            }
        }
        assert!(piece.is_empty(), "what was not taken is lost");
    }
    let ended = matches!(frames.last(), Some(Frame::End(_)));
    assert_eq!(reader.has_ended(), ended);
    (frames, reader.finish())
}

fn at_once(mut bytes: &[u8], limit: u32) -> Outcome {
    let mut frames = Vec::new();
    loop {
        if bytes.is_empty() {
            return (frames, Ok(()));
        }
        if matches!(frames.last(), Some(Frame::End(_))) {
            return (frames, Err(EnvelopeError::AfterEnd));
        }
        match bytes[0] {
            0 | 2 => {}
            1 | 3 => return (frames, Err(EnvelopeError::Compressed)),
            flags => return (frames, Err(EnvelopeError::UnknownFlags(flags))),
        }
        let [flags, a, b, c, d, rest @ ..] = bytes else { return (frames, Err(EnvelopeError::Truncated)) };
        let length = u32::from_be_bytes([*a, *b, *c, *d]);
        if length > limit {
            return (frames, Err(EnvelopeError::TooLong { length, limit }));
        }
        let Some((payload, rest)) = rest.split_at_checked(length as usize) else {
            return (frames, Err(EnvelopeError::Truncated));
        };
        let payload = Bytes::copy_from_slice(payload);
        frames.push(if *flags == 0 { Frame::Message(payload) } else { Frame::End(payload) });
        bytes = rest;
    }
}
