//! A sandbox's agent, as E2B's SDKs know it: commands, files, and how it is. What it answers is done from outside, through the
//! same calls as everything else: with the same quotas, rules of idleness, and rows in the ledger.

mod place;
mod process;
mod rpc;

use axum::{
    Json,
    extract::Request,
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
};
use cabana_e2b_wire::connect;

use super::{
    guest::{Guest, Named},
    refused::Refused,
};
use crate::App;

pub(super) async fn serve(app: &App, named: Named, request: Request) -> Response {
    let guest = match Guest::find(app, &named.sandbox).await {
        Ok(guest) => guest,
        Err(unreached) => return unreached.into_response(),
    };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    if (&method, path.as_str()) == (&Method::GET, "/health") {
        return StatusCode::NO_CONTENT.into_response();
    }
    if path != "/files" && !guest.admits(request.headers()) {
        return Refused::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized access, please provide a valid access token or method signing if supported",
        )
        .into_response();
    }
    match (&method, path.as_str()) {
        (&Method::GET, "/envs") => Json(guest.wanted.env.clone()).into_response(),
        (&Method::POST, called) if called.starts_with("/process.") => {
            process::serve(app, &guest, request).await.unwrap_or_else(|| no_method(&path))
        }
        (&Method::POST, path) if path.starts_with("/filesystem.") => no_method(path),
        _ => Refused::not_found(format!("there is no {path}")).into_response(),
    }
}

fn no_method(path: &str) -> Response {
    rpc::refused(&connect::Error::new(connect::Code::Unimplemented, format!("there is no {path}")))
}
