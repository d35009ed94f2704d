//! A span around each request, as whoever traces them wants it.

use axum::{
    extract::{MatchedPath, Request},
    middleware::Next,
    response::Response,
};
use tracing::{Instrument as _, debug_span, field::Empty};

/// Of the address only the route: the rest may hold a link.
pub(crate) async fn traced(request: Request, next: Next) -> Response {
    let parent = request.headers().get("traceparent").and_then(|value| value.to_str().ok());
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let span = debug_span!(
        "request",
        traceparent = parent,
        http.request.method = request.method().as_str(),
        http.route = route,
        http.response.status_code = Empty,
        error.type = Empty,
    );
    let response = next.run(request).instrument(span.clone()).await;
    let status = response.status();
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("error.type", status.as_str());
    }
    response
}
