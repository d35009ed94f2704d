//! What all answers of ours have in common whose tenant is known: no cache keeps them, and what a client has not taken is charged.
//!
//! Any of them may have secrets: keys, tokens, links, variables. And each that is there as a whole stays in memory until its client takes
//! it. What comes out of a port of a sandbox is no answer of ours: its tenant is not noted.

use std::{
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{Extensions, HeaderMap, HeaderValue, Method, header},
    response::{IntoResponse, Response},
};
use cabana_runtime::{Error, MemoryCharge, Tenant};
use cabana_sandbox::Place;
use hyper::body::{Frame, SizeHint};

use crate::{App, e2b, error::Refused};

/// Whose request it is, from when that is known, with its place among those of its tenant that are not answered yet.
#[derive(Clone, Default)]
pub(crate) struct OfTenant(Arc<OnceLock<(Tenant, Option<Place>)>>);

impl OfTenant {
    /// For what reads the body, and for what answers.
    pub(crate) fn note(app: &App, extensions: &mut Extensions, tenant: &Tenant) -> Result<(), Error> {
        let noted = &extensions.get_or_insert_default::<Self>().0;
        let mut admitted = Ok(());
        noted.get_or_init(|| {
            let place = app.runtime.request_place(tenant);
            (tenant.clone(), place.map_err(|error| admitted = Err(error)).ok())
        });
        admitted
    }

    pub(crate) fn of(extensions: &Extensions) -> Option<Tenant> {
        extensions.get::<Self>()?.0.get().map(|(tenant, _)| tenant.clone())
    }
}

/// Whether nothing is done: such a request may be asked again, and so may be refused for its answer.
fn only_reads(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// Before anything is done. What frees something has no long answer.
pub(crate) fn check(app: &App, method: &Method, tenant: &Tenant) -> Result<(), Error> {
    if only_reads(method) || *method == Method::DELETE { Ok(()) } else { app.runtime.check_answers(tenant) }
}

/// A request that has come, until there is an answer.
pub(crate) struct Unanswered {
    of_tenant: OfTenant,
    is_theirs: bool,
    only_reads: bool,
}

impl Unanswered {
    /// Before its tenant is known.
    pub(crate) fn note(request: &mut Request) -> Self {
        let of_tenant = OfTenant::default();
        request.extensions_mut().insert(of_tenant.clone());
        Self { of_tenant, is_theirs: e2b::is_for_theirs(request), only_reads: only_reads(request.method()) }
    }

    /// What answers it, or that there is no room for that.
    pub(crate) fn charge(self, app: &App, mut response: Response) -> Response {
        let Some((tenant, _)) = self.of_tenant.0.get() else { return response };
        let length = response.body().size_hint().exact().unwrap_or(0); // one that is made as it is sent says no length
        let memory = app.runtime.answer_memory(tenant);
        let mut memory = if self.only_reads { memory } else { memory.owed() };
        if !memory.grow(usize::try_from(length).unwrap_or(usize::MAX)) {
            let refused = Refused::from(Error::ListsTooLarge).into_response();
            response = if self.is_theirs { e2b::said_anew(refused) } else { refused };
        } else if length > 0 {
            response = response.map(|body| Body::new(Charged { body, memory: Arc::new(memory) }));
        }
        let headers = response.headers_mut();
        // Streams of events come with one of the framework's, by which a cache may keep them.
        if headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream")) {
            headers.remove(header::CACHE_CONTROL);
        }
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        response
    }
}

/// About how much memory it takes.
pub(crate) fn size_of_head(headers: &HeaderMap) -> usize {
    const HEADER: usize = 128;
    headers.iter().map(|(name, value)| HEADER + name.as_str().len() + value.len()).sum()
}

/// Has a head charged until it is written. Over HTTP/2 nothing else bounds heads: a client need not take any, and may ask for very many.
pub(crate) fn keep_head(headers: &mut HeaderMap, memory: MemoryCharge) {
    // One value has it: all are dropped at once.
    if let Some(value) = headers.values_mut().next()
        && let Ok(kept) =
            HeaderValue::from_maybe_shared(Arc::new(memory).keep(Bytes::copy_from_slice(value.as_bytes())))
    {
        *value = kept;
    }
}

/// A body that is there as a whole. What has gone on is charged until it is gone.
struct Charged {
    body: Body,
    memory: Arc<MemoryCharge>,
}

impl HttpBody for Charged {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let memory = &self.memory;
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(|bytes| memory.keep(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use cabana_runtime::MemoryLedger;
    use http_body_util::BodyExt as _;

    use super::*;

    #[tokio::test]
    async fn what_has_gone_on_is_charged_until_it_is_gone() {
        let (ledger, tenant) = (MemoryLedger::new(8 << 10, 64 << 10), Tenant::new("one").unwrap());
        let fits = || ledger.open(&tenant).grow(8 << 10);
        let mut memory = ledger.open(&tenant);
        assert!(memory.grow(12 << 10), "of which the first part is free");
        let mut body = Body::new(Charged { body: Body::from(vec![0; 12 << 10]), memory: Arc::new(memory) });
        let mut piece = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        drop(piece.split_to(10 << 10));
        assert!(!fits(), "some of it is there");
        drop(piece);
        assert!(fits());
    }
}
