//! Bodies that are packed on their way.

use std::io::{self, Write};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use cabana_sandbox::{Error, Stream};
use flate2::{
    Compression,
    write::{GzDecoder, GzEncoder},
};
use futures_util::{StreamExt, stream};
use tokio::sync::Semaphore;

/// What a client takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepted {
    Packed,
    Plain,
    Neither,
}

pub(super) fn accepted(headers: &HeaderMap) -> Accepted {
    let all = headers.get_all(header::ACCEPT_ENCODING);
    let all = all.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    let (mut gzip, mut identity, mut others) = (None, None, None);
    for one in all {
        let (name, about) = one.split_once(';').unwrap_or((one, ""));
        let quality = about.trim().strip_prefix("q=").and_then(|quality| quality.trim().parse::<f32>().ok());
        let takes = quality.is_none_or(|quality| quality > 0.0);
        match name.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => gzip = Some(takes),
            "identity" => identity = Some(takes),
            "*" => others = Some(takes),
            _ => {}
        }
    }
    match (gzip.or(others).unwrap_or(false), identity.or(others).unwrap_or(true)) {
        (true, _) => Accepted::Packed,
        (false, true) => Accepted::Plain,
        (false, false) => Accepted::Neither,
    }
}

/// Packed at once. It takes more of a processor than all else that a file takes, and a client that is sent it as it is has it, too.
static PACKED_AT_ONCE: Semaphore = Semaphore::const_new(4);

/// How long it becomes is known at its end.
pub(super) fn packed(response: Response) -> Response {
    let Ok(permit) = PACKED_AT_ONCE.try_acquire() else { return response };
    let (mut parts, body) = response.into_parts();
    for name in [header::CONTENT_LENGTH, header::ACCEPT_RANGES, header::ETAG] {
        parts.headers.remove(name);
    }
    parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    let packer = GzEncoder::new(Vec::new(), Compression::fast());
    let packed = stream::unfold(Some((body.into_data_stream(), packer, permit)), |state| async {
        let (mut body, mut packer, permit) = state?;
        loop {
            match body.next().await {
                None => return Some((packer.finish().map(Bytes::from), None)),
                Some(Err(error)) => return Some((Err(io::Error::other(error)), None)),
                Some(Ok(bytes)) => {
                    // Off the workers that everybody waits for.
                    let written = tokio::task::spawn_blocking(move || packer.write_all(&bytes).map(|()| packer));
                    packer = match written.await.map_err(io::Error::other).flatten() {
                        Err(error) => return Some((Err(error), None)),
                        Ok(packer) => packer,
                    };
                    if !packer.get_ref().is_empty() {
                        let out = std::mem::take(packer.get_mut());
                        return Some((Ok(out.into()), Some((body, packer, permit))));
                    }
                }
            }
        }
    });
    Response::from_parts(parts, Body::from_stream(packed))
}

/// Of each piece that comes no more is unpacked at once than this, and the rest afterwards.
const PIECE: usize = 4 << 10;

/// What a client has packed. A little can become very much, so it is unpacked piece by piece, as fast as it is taken.
pub(in crate::e2b) fn unpacked(body: Stream<Bytes>) -> Stream<Bytes> {
    let unpacker = GzDecoder::new(Vec::new());
    let bad = |error: io::Error| Error::invalid("body", format!("it is no gzip: {error}"));
    let pieces = stream::try_unfold(Some((body, unpacker, Bytes::new())), move |state| async move {
        let Some((mut body, mut unpacker, mut piece)) = state else { return Ok(None) };
        loop {
            if piece.is_empty() {
                match body.next().await.transpose()? {
                    Some(next) => piece = next,
                    None => {
                        let rest = unpacker.finish().map_err(bad)?;
                        return Ok(Some((rest.into(), None)));
                    }
                }
            }
            let some = piece.split_to(piece.len().min(PIECE));
            unpacker.write_all(&some).map_err(bad)?;
            if !unpacker.get_ref().is_empty() {
                let out = std::mem::take(unpacker.get_mut());
                return Ok(Some((Bytes::from(out), Some((body, unpacker, piece)))));
            }
        }
    });
    pieces.boxed()
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt;

    use super::*;

    fn taken(value: &'static str) -> Accepted {
        accepted(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))]))
    }

    #[test]
    fn what_a_client_takes_is_what_it_says() {
        assert_eq!(accepted(&HeaderMap::new()), Accepted::Plain);
        assert_eq!(taken("gzip, deflate"), Accepted::Packed);
        assert_eq!(taken("identity"), Accepted::Plain);
        assert_eq!(taken("gzip;q=0"), Accepted::Plain);
        assert_eq!(taken("*"), Accepted::Packed);
        assert_eq!(taken("br, identity;q=0"), Accepted::Neither);
    }

    async fn plain(pieces: Vec<Bytes>) -> Result<Vec<u8>, Error> {
        let pieces: Vec<Bytes> = unpacked(stream::iter(pieces).map(Ok).boxed()).try_collect().await?;
        Ok(pieces.concat())
    }

    #[tokio::test]
    async fn what_was_packed_is_unpacked_however_it_is_cut() {
        let text = b"much of the same ".repeat(5000);
        let mut packer = GzEncoder::new(Vec::new(), Compression::default());
        packer.write_all(&text).unwrap();
        let packed = packer.finish().unwrap();
        for cut in [1, 7, packed.len()] {
            let pieces = packed.chunks(cut).map(Bytes::copy_from_slice).collect();
            assert!(plain(pieces).await.unwrap() == text, "in pieces of {cut}");
        }
        assert!(plain(vec![Bytes::from_static(b"no gzip at all")]).await.is_err());
        assert!(plain(vec![Bytes::copy_from_slice(&packed[..packed.len() / 2])]).await.is_err());
    }
}
