//! Parts of a request, with our own words for what is wrong with them.

use std::{fmt, marker::PhantomData};

use axum::{
    Json,
    body::Bytes,
    extract::{self, FromRequest, FromRequestParts, Request},
    http::request::Parts,
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};

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
        let Json(Object(body)) = Json::from_bytes(&bytes)?;
        Ok(Self(body))
    }
}

/// An object, and not a list of its fields in their order, which serde takes as well.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        object(from).map(Self)
    }
}

/// For a field that is an object.
pub(crate) fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    struct Fields<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
        type Value = T;

        fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
            to.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
            T::deserialize(MapAccessDeserializer::new(fields))
        }
    }

    from.deserialize_map(Fields(PhantomData))
}

/// For a field that is an object or null.
pub(crate) fn maybe_object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    let object = Option::<Object<T>>::deserialize(from)?;
    Ok(object.map(|Object(fields)| fields))
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
