//! A request to the inside, and its answer back: as streams, both ways.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, HttpBody as _},
    extract::Request,
    http::{Method, StatusCode, Uri, Version, uri::PathAndQuery},
    response::Response,
};
use cabana_runtime::{Code, Connection, Error, MemoryCharge, Visitor};
use hyper::{client::conn::http1, ext::on_informational, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio_util::sync::CancellationToken;

use super::{
    address::{Door, Way},
    admit::without_token,
    failed, headers, pieces,
};
use crate::{
    App, answers,
    error::{Answer, Refused},
    listen::Peer,
};

/// Of the head of an answer, and of what waits in one connection to the inside.
const HEAD: usize = 32 << 10;
/// Informational ones before an answer: each is a few bytes of a guest, and is parsed.
const MAX_INFORMATIONAL: usize = 16;

/// One connection for each request: what one left behind in it cannot reach the next.
pub(super) async fn relay(app: &App, visitor: Visitor, door: &Door, request: Request) -> Answer<Response> {
    let key = app.runtime.access().life(visitor.key()).await?;
    let tenant = visitor.tenant().clone();
    let memory = charged(app.runtime.port_memory(&tenant), HEAD)?;
    let stream = reach(app, visitor, door).await?;
    let (mut parts, body) = request.into_parts();
    let (wants_socket, is_head) = (headers::is_websocket(&parts), parts.method == Method::HEAD);
    let (headers, uri) = (headers::inwards(app, door, &parts), inner(door, &parts.uri)?);
    let outside = parts.extensions.remove::<OnUpgrade>().filter(|_| wants_socket);
    let peer = parts.extensions.remove::<Peer>();

    let moved = Arc::new(AtomicBool::new(true));
    let stream = TokioIo::new(Watched { stream, moved: moved.clone() });
    // Names as people write them: there are programs that look for `Host:`.
    let builder = http1::Builder::new().title_case_headers(true).max_buf_size(HEAD).clone();
    let handshake = builder.handshake::<_, Body>(stream).await;
    let (mut sender, connection) = handshake.map_err(|error| failed(door.port, error))?;
    let (idle, watched, seat, ended) = (app.bounds.idle, moved.clone(), peer.clone(), key.clone().ended());
    let babbles = CancellationToken::new();
    let cut = babbles.clone();
    app.tasks.spawn(async move {
        let _held = (seat, memory);
        tokio::select! {
            _ = connection.with_upgrades() => {} // how it ended is told by the answer, or by its end
            () = stands_still(&watched, idle) => {}
            () = ended => {}
            () = cut.cancelled() => {}
        }
    });

    let mut asked = Request::new(body);
    (*asked.method_mut(), *asked.uri_mut(), *asked.version_mut()) = (parts.method, uri, Version::HTTP_11);
    *asked.headers_mut() = headers;
    let (informational, too_many) = (AtomicUsize::new(0), babbles.clone());
    on_informational(&mut asked, move |_| {
        if informational.fetch_add(1, Ordering::Relaxed) >= MAX_INFORMATIONAL {
            too_many.cancel();
        }
    });
    let answered = sender.send_request(asked).await;
    if babbles.is_cancelled() {
        let why = format!("more than {MAX_INFORMATIONAL} informational responses came before it");
        return Err(failed(door.port, why));
    }
    let mut answer = answered.map_err(|error| failed(door.port, error))?;
    let upgraded = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    if upgraded {
        let outside = outside.ok_or_else(|| failed(door.port, "it changes to a protocol that nobody asked for"))?;
        let inside = hyper::upgrade::on(&mut answer);
        let leaving = peer.as_ref().map(|peer| peer.leaving.clone()).unwrap_or_default();
        app.tasks.spawn(async move {
            let _seat = peer;
            let Ok((outside, inside)) = futures_util::future::try_join(outside, inside).await else { return };
            let (mut outside, mut inside) = (TokioIo::new(outside), TokioIo::new(inside));
            tokio::select! {
                _ = copy_bidirectional(&mut outside, &mut inside) => {}
                () = stands_still(&moved, idle) => {}
                () = leaving.cancelled() => {}
                () = key.ended() => {}
            }
        });
    }
    *answer.version_mut() = Version::HTTP_11; // the inside may speak 1.0; how we speak is between us and the client
    let (status, length) = (answer.status(), answer.body().size_hint().exact());
    headers::check_length(status, is_head, length, answer.headers_mut());
    headers::outwards(door, answer.headers_mut(), upgraded);
    let head = charged(app.runtime.port_memory(&tenant), answers::size_of_head(answer.headers()))?;
    answers::keep_head(answer.headers_mut(), head);
    Ok(answer.map(|body| if upgraded { Body::empty() } else { pieces::gather(app, tenant, body) }))
}

fn charged(mut memory: MemoryCharge, bytes: usize) -> Answer<MemoryCharge> {
    if memory.grow(bytes) { Ok(memory) } else { Err(Error::ListsTooLarge.into()) }
}

async fn reach(app: &App, visitor: Visitor, door: &Door) -> Answer<Connection> {
    /// Between two tries.
    const AGAIN: Duration = Duration::from_millis(50);
    let begun = Instant::now();
    loop {
        match app.runtime.connect(visitor.clone(), &door.sandbox, door.port).await {
            Err(error) if error.code() == Code::PortClosed && begun.elapsed() < door.patience => {
                tokio::time::sleep(AGAIN).await;
            }
            reached => return Ok(reached?),
        }
    }
}

/// As the sandbox sees it: below the door, and without a host.
fn inner(door: &Door, uri: &Uri) -> Answer<Uri> {
    let path = match door.way {
        Way::Path => uri.path().get(door.prefix().len() - 1..).unwrap_or("/"),
        Way::Host | Way::Header => uri.path(),
    };
    let query = uri.query().map(without_token).filter(|query| !query.is_empty());
    let target = query.map_or(path.to_owned(), |query| format!("{path}?{query}"));
    let target: PathAndQuery = target.parse().map_err(|error| Refused::invalid("path", error))?;
    Ok(Uri::from(target))
}

/// Returns once nothing has moved for so long.
async fn stands_still(moved: &AtomicBool, idle: Duration) {
    while moved.swap(false, Ordering::Relaxed) {
        tokio::time::sleep(idle).await;
    }
}

/// Tells whether something moves in it.
struct Watched {
    stream: Connection,
    moved: Arc<AtomicBool>,
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() {
            self.moved.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if written.is_ready() {
            self.moved.store(true, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_moves_is_left_alone_and_what_stands_still_is_not() {
        let (moved, tick) = (AtomicBool::new(true), Duration::from_millis(1));
        let moving = async {
            for _ in 0..50 {
                moved.store(true, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            () = moving => {}
            () = stands_still(&moved, Duration::from_secs(3600)) => panic!("it moves"),
        }
        stands_still(&moved, tick).await;
        assert!(!moved.load(Ordering::Relaxed));
    }
}
