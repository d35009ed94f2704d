//! The body of an answer, in pieces that are worth their while.
//!
//! A guest sends thousands of chunks of one byte with one call of the kernel. Each that were sent on as it is would be a chunk and a call of
//! ours; so what is there already goes on together, and very many small ones have their pace. Trailers are between the guest and us.

use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody as _};
use bytes::BytesMut;
use cabana_runtime::Tenant;
use futures_util::{FutureExt, stream};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::{App, pace::TenantPace};

/// What is no shorter is sent on as it comes.
const PIECE: usize = 16 << 10;
/// As many bytes each chunk counts for at least. Those that are longer have no pace.
const CHUNK: usize = 1 << 10;

pub(super) fn gather(app: &App, tenant: Tenant, body: Incoming) -> Body {
    if body.is_end_stream() {
        return Body::empty();
    }
    let chunks = Chunks { body, failed: None, pace: app.port_pace.clone(), tenant };
    Body::from_stream(stream::unfold(chunks, async |mut chunks| Some((chunks.next().await?, chunks))))
}

struct Chunks {
    body: Incoming,
    /// Behind what came before it.
    failed: Option<hyper::Error>,
    pace: Arc<TenantPace>,
    tenant: Tenant,
}

impl Chunks {
    /// All that is there already, up to a piece.
    async fn next(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        let first = match self.chunk().await? {
            Ok(chunk) if chunk.len() >= PIECE => return Some(Ok(chunk)),
            first => first,
        };
        let mut piece = match first {
            Ok(chunk) => BytesMut::from(chunk),
            failed => return Some(failed),
        };
        let mut costs = CHUNK.saturating_sub(piece.len());
        while piece.len() < PIECE {
            tokio::task::yield_now().await; // what reads the connection has one chunk ready at a time
            match self.chunk().now_or_never() {
                Some(Some(Ok(chunk))) => {
                    costs += CHUNK.saturating_sub(chunk.len());
                    piece.extend_from_slice(&chunk);
                }
                Some(Some(Err(error))) => {
                    self.failed = Some(error);
                    break;
                }
                Some(None) | None => break,
            }
        }
        self.pace.wait(&self.tenant, costs).await;
        Some(Ok(piece.freeze()))
    }

    async fn chunk(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        loop {
            match self.body.frame().await? {
                Ok(frame) => {
                    if let Ok(chunk) = frame.into_data() {
                        return Some(Ok(chunk));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
