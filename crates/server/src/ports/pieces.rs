//! The body of an answer, in pieces that are worth their while.
//!
//! A guest sends thousands of chunks of one byte with one call of the kernel. Each that were sent on as it is would be a chunk and a call of
//! ours; so a first one goes on at once, those that follow it closely go on together, and very many have their pace. Trailers are between
//! the guest and us.

use std::{future::pending, sync::Arc, time::Duration};

use axum::body::{Body, Bytes, HttpBody as _};
use bytes::BytesMut;
use cabana_runtime::Tenant;
use futures_util::stream;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use crate::{App, pace::TenantPace, untaken::Untaken};

/// What is no shorter is sent on as it comes.
const PIECE: usize = 16 << 10;
/// As many bytes each chunk counts for at least. Those that are longer have no pace.
const CHUNK: usize = 1 << 10;
/// Between two pieces that are shorter than that.
const GATHERING: Duration = Duration::from_millis(2);

pub(super) fn gather(app: &App, tenant: Tenant, body: Incoming) -> Body {
    if body.is_end_stream() {
        return Body::empty();
    }
    let untaken = Untaken::new(app.runtime.port_memory(&tenant));
    let chunks = Chunks { body, failed: None, next_due: Instant::now(), pace: app.port_pace.clone(), tenant };
    Body::from_stream(stream::unfold((chunks, untaken), async |(mut chunks, untaken)| {
        let piece = match chunks.next().await? {
            Ok(piece) => Ok(untaken.keep(piece, pending()).await), // who goes away meanwhile drops it
            failed => failed,
        };
        Some((piece, (chunks, untaken)))
    }))
}

struct Chunks {
    body: Incoming,
    /// Behind what came before it.
    failed: Option<hyper::Error>,
    /// When the next piece goes on, however short it is.
    next_due: Instant,
    pace: Arc<TenantPace>,
    tenant: Tenant,
}

impl Chunks {
    /// All that comes until it is due, up to a piece.
    async fn next(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        let mut piece = match self.chunk().await? {
            Ok(chunk) if chunk.len() >= PIECE => return Some(Ok(chunk)),
            Ok(chunk) => BytesMut::from(chunk),
            failed => return Some(failed),
        };
        let mut costs = CHUNK.saturating_sub(piece.len());
        while piece.len() < PIECE {
            match timeout_at(self.next_due, self.chunk()).await {
                Ok(Some(Ok(chunk))) => {
                    costs += CHUNK.saturating_sub(chunk.len());
                    piece.extend_from_slice(&chunk);
                }
                Ok(Some(Err(error))) => {
                    self.failed = Some(error);
                    break;
                }
                Ok(None) | Err(_) => break,
            }
        }
        self.pace.wait(&self.tenant, costs).await;
        self.next_due = Instant::now() + GATHERING;
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
