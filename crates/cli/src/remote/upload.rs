//! A file as the body of a request.

use futures_util::{StreamExt, stream::try_unfold};
use reqwest::Body;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::progress::Bar;

const CHUNK: usize = 256 << 10;

/// A chunk at a time: a file may be larger than the memory.
pub(super) fn body(from: impl AsyncRead + Send + Unpin + 'static, bar: &Bar) -> Body {
    let chunks = try_unfold(from, |mut from| async move {
        let mut chunk = vec![0; CHUNK];
        let read = from.read(&mut chunk).await?;
        chunk.truncate(read);
        Ok::<_, std::io::Error>((read > 0).then_some((chunk, from)))
    });
    let moved = bar.counter();
    Body::wrap_stream(chunks.inspect(move |chunk| moved(chunk.as_ref().map_or(0, Vec::len))))
}
