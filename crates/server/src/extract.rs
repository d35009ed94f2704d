//! Parts of a request, with our own words for what is wrong with them.

use axum::{
    Json,
    body::Bytes,
    extract::{self, FromRequest, FromRequestParts, Request},
    http::request::Parts,
};
use serde::de::DeserializeOwned;

use crate::{App, error::Refused};

/// A JSON body, whatever the client calls it: no page of another site can send one along with a key. None at all is an empty
/// object: where every field has a default, nothing need be sent.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refused> {
        let request = bounded(request, app.bounds.body);
        let bytes = Bytes::from_request(request, app).await.map_err(|rejection| {
            match rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE {
                true => Refused::new(cabana_runtime::Code::TooLarge, "the body is larger than the server takes"),
                false => Refused::invalid("body", rejection.body_text()),
            }
        })?;
        let bytes = if bytes.is_empty() { Bytes::from_static(b"{}") } else { bytes };
        Ok(Self(Json::from_bytes(&bytes)?.0))
    }
}

/// The parameters of an address.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = Refused;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refused> {
        Ok(Self(extract::Query::from_request_parts(parts, app).await?.0))
    }
}

/// The variable parts of a path.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Path<T> {
    type Rejection = Refused;
    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refused> {
        Ok(Self(extract::Path::from_request_parts(parts, app).await?.0))
    }
}

fn bounded(mut request: Request, most: usize) -> Request {
    use axum::extract::DefaultBodyLimit;
    DefaultBodyLimit::max(most).apply(&mut request);
    request
}
