//! Where a request goes: to the agent or to a port of a sandbox, by what names one, or to a route of ours.
//!
//! All of this is one middleware. Each one more makes a copy of all that lie in it, at every request.

use std::ops::ControlFlow::{Break, Continue};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};

use crate::{App, answers::Unanswered, e2b, hosts, listen, ports};

pub(crate) async fn dispatch(State(app): State<App>, request: Request, next: Next) -> Response {
    if let Break(refused) = hosts::check(&request) {
        return refused;
    }
    let mut request = match listen::refused_at_door(&app, request).await {
        Continue(request) => request,
        Break(refused) => return refused,
    };
    let unanswered = Unanswered::note(&mut request);
    let response = answer(&app, request, next).await;
    unanswered.charge(&app, response)
}

async fn answer(app: &App, request: Request, next: Next) -> Response {
    let request = match e2b::by_name(app, request).await {
        Continue(request) => request,
        Break(response) => return response,
    };
    match ports::by_host(app, request).await {
        Continue(request) => e2b::in_their_words(request, next).await,
        Break(response) => response,
    }
}
