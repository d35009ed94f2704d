//! Answers whose length a guest or a tenant decides: made off the workers that everybody waits for, and charged until they were sent.

use std::{
    io,
    sync::{Arc, LazyLock},
};

use axum::{
    body::Body,
    http::header,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use cabana_runtime::{Error, MemoryCharge, RowSize, Turns};
use futures_util::stream;
use serde::Serialize;

/// What is made of no more than this takes less than to wake another thread.
const AT_ONCE: usize = 64 << 10;
const CHUNK: usize = 64 << 10;
/// Of those who write long ones: on more threads they would take the processors from all that is short.
static WRITERS: LazyLock<Turns> = LazyLock::new(|| Turns::new(2, 4));

/// As JSON what `make` makes of what `memory` was charged for.
pub(crate) async fn json<T: Serialize>(
    memory: MemoryCharge,
    make: impl FnOnce() -> T + Send + 'static,
) -> Result<Response, Error> {
    try_json(memory, || Ok(make())).await
}

/// The same of what may fail.
pub(crate) async fn try_json<T: Serialize, E: From<Error> + Send + 'static>(
    memory: MemoryCharge,
    make: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<Response, E> {
    let turn = if memory.used() <= AT_ONCE { None } else { Some(WRITERS.take(Some(memory.tenant())).await) };
    let is_short = turn.is_none();
    let write = move || {
        let _turn = turn;
        let mut writer = Charged { bytes: Vec::new(), memory };
        let written = serde_json::to_writer(&mut writer, &make()?);
        written.map(|()| writer).map_err(|_| E::from(Error::ListsTooLarge))
    };
    let written = if is_short { Ok(write()) } else { tokio::task::spawn_blocking(write).await };
    let Charged { bytes, mut memory } = written.map_err(|_| Error::ListsTooLarge)??;
    memory.clear(); // what it was made of is gone
    if !memory.grow(bytes.len()) {
        return Err(Error::ListsTooLarge.into());
    }
    Ok(sent(bytes.into(), memory))
}

/// Charges for rows that were read for one.
pub(crate) fn charge<T: RowSize>(memory: &mut MemoryCharge, rows: &[T]) -> Result<(), Error> {
    match memory.grow(rows.iter().map(T::size).sum()) {
        true => Ok(()),
        false => Err(Error::ListsTooLarge),
    }
}

/// As JSON.
pub(crate) fn written_len(text: &str) -> usize {
    let of_byte = |byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    };
    text.bytes().map(of_byte).sum()
}

/// Fails where there is no room for more.
struct Charged {
    bytes: Vec<u8>,
    memory: MemoryCharge,
}

impl io::Write for Charged {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        if !self.memory.grow(part.len()) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(part);
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn sent(bytes: Bytes, memory: MemoryCharge) -> Response {
    if bytes.len() <= AT_ONCE {
        return ([(header::CONTENT_TYPE, "application/json")], bytes).into_response(); // charged as all short ones are
    }
    let head =
        [(header::CONTENT_TYPE, "application/json".to_owned()), (header::CONTENT_LENGTH, bytes.len().to_string())];
    let chunks = stream::unfold(Arc::new(memory).keep(bytes), |mut rest| async move {
        let chunk = rest.split_to(rest.len().min(CHUNK));
        (!chunk.is_empty()).then(|| (Ok::<_, io::Error>(chunk), rest))
    });
    (head, Body::from_stream(chunks)).into_response()
}
