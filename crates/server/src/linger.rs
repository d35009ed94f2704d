//! What a client still sends when its request is refused already.
//!
//! A connection that is closed while bytes are on their way is reset, and takes the answer along: who sends much would hear
//! that the pipe broke, and not why. So what is not read goes on to be read for a while, by nobody.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    middleware::Next,
    response::Response,
};
use futures_util::StreamExt;
use hyper::body::{Frame, SizeHint};
use tokio_util::task::TaskTracker;

/// For whoever looks at the answer meanwhile, or soon.
const A_WHILE: Duration = Duration::from_secs(20);

pub(crate) async fn linger(request: Request, next: Next) -> Response {
    next.run(request.map(lingering)).await
}

/// For whoever refuses it himself.
pub(crate) fn lingering(body: Body) -> Body {
    Body::new(Lingering(body))
}

struct Lingering(Body);

impl HttpBody for Lingering {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        if self.0.is_end_stream() {
            return;
        }
        let mut rest = std::mem::take(&mut self.0).into_data_stream();
        let read = async move { while let Some(Ok(_)) = rest.next().await {} };
        TaskTracker::new().spawn(tokio::time::timeout(A_WHILE, read));
    }
}
