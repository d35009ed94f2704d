//! A sandbox's agent, as E2B's SDKs know it: commands, files, and how it is. What it answers is done from outside, through the
//! same calls as everything else: with the same quotas, rules of idleness, and rows in the ledger.

mod admission;
mod entry;
mod files;
mod filesystem;
mod metrics;
mod place;
mod process;
mod rpc;

use axum::{
    extract::Request,
    http::{HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use cabana_e2b_wire::connect;
use cabana_runtime::Error;

pub(crate) use self::{files::Gzip, filesystem::Watchers};
use super::{
    guest::{Guest, Named, is_awake},
    refused::{Refused, Unreached},
    wakes::wake,
};
use crate::{
    App,
    answers::{self, OfTenant},
    long_answer,
};

/// For pages of any origin: what opens a sandbox is no cookie, and so nothing that a browser adds by itself.
pub(super) async fn serve(app: &App, named: Named, request: Request) -> Response {
    let mut response = match *request.method() {
        Method::OPTIONS => StatusCode::NO_CONTENT.into_response(),
        _ => answered(app, named, request).await,
    };
    let anything = HeaderValue::from_static("*");
    for name in [
        header::ACCESS_CONTROL_ALLOW_ORIGIN,
        header::ACCESS_CONTROL_ALLOW_METHODS,
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
    ] {
        response.headers_mut().insert(name, anything.clone());
    }
    response
}

async fn answered(app: &App, named: Named, mut request: Request) -> Response {
    let guest = match Guest::find(app, &named.sandbox).await {
        Ok(guest) => guest,
        Err(unreached) => return unreached.into_response(),
    };
    let noted = OfTenant::note(app, request.extensions_mut(), &guest.caller.tenant);
    if let Err(error) = noted.and_then(|()| answers::check(app, request.method(), &guest.caller.tenant)) {
        return Refused::from(error).into_response();
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let admitted = guest.admits(request.headers());
    let is_health = (&method, path.as_str()) == (&Method::GET, "/health");
    if is_health && !admitted {
        // Everybody may ask, and not everybody wakes it.
        return match is_awake(guest.record.state) {
            true => StatusCode::NO_CONTENT.into_response(),
            false => Unreached::gone(&guest.record.id).into_response(),
        };
    }
    if path != "/files" && !admitted {
        return Refused::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized access, please provide a valid access token or method signing if supported",
        )
        .into_response();
    }
    if admitted {
        guest.let_in(request.extensions());
        if let Err(error) = wake(app, &guest).await {
            return Refused::from(error).into_response();
        }
    }
    match (&method, path.as_str()) {
        _ if is_health => StatusCode::NO_CONTENT.into_response(),
        (&Method::GET, "/envs") => envs(app, guest).await.unwrap_or_else(|error| Refused::from(error).into_response()),
        (&Method::POST, called) if called.starts_with("/process.") => {
            process::serve(app, &guest, request).await.unwrap_or_else(|| no_method(&path))
        }
        (&Method::POST, called) if called.starts_with("/filesystem.") => {
            filesystem::serve(app, &guest, request).await.unwrap_or_else(|| no_method(&path))
        }
        (&Method::GET | &Method::POST, "/files") => files::serve(app, &guest, request).await,
        (&Method::GET, "/metrics") => metrics::serve(app, &guest).await,
        _ => Refused::not_found(format!("there is no {path}")).into_response(),
    }
}

async fn envs(app: &App, guest: Guest) -> Result<Response, Error> {
    let mut memory = app.runtime.list_memory(&guest.caller.tenant);
    let size = |(name, value): (&String, &String)| name.len() + value.len();
    match memory.grow(guest.spec.wanted.env.iter().map(size).sum()) {
        true => long_answer::json(memory, move || guest.spec.wanted.env.clone()).await,
        false => Err(Error::ListsTooLarge),
    }
}

fn no_method(path: &str) -> Response {
    rpc::refused(&connect::Error::new(connect::Code::Unimplemented, format!("there is no {path}")))
}
