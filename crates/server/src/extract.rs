//! Parts of a request, with our own words for what is wrong with them.

use std::{fmt, marker::PhantomData, time::Duration};

use axum::{
    Json,
    body::HttpBody as _,
    extract::{self, FromRequest, FromRequestParts, Request},
    http::{header, request::Parts},
};
use bytes::{Bytes, BytesMut};
use cabana_runtime::{Code, MemoryCharge, MemoryLedger};
use http_body_util::BodyExt as _;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};
use tokio::time::timeout;

use crate::{App, answers::OfTenant, error::Refused, linger::lingering, parse::Received};

/// A JSON body, whatever the client calls it: no page of another site can send one along with a key. None at all, or
/// null, is an empty object: where every field has a default, nothing need be sent.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, app: &App) -> Result<Self, Refused> {
        let body = all_of(request, app).await?;
        let Json(Object(body)) = app.parsers.read(body, |bytes| Json::from_bytes(or_empty(bytes))).await??;
        Ok(Self(body))
    }
}

fn or_empty(bytes: &[u8]) -> &[u8] {
    if matches!(bytes.trim_ascii(), b"" | b"null") { b"{}" } else { bytes }
}

/// A body as a whole, within the bounds.
pub(crate) async fn all_of(request: Request, app: &App) -> Result<Received, Refused> {
    let tenant = OfTenant::of(request.extensions());
    let mut memory = tenant.as_ref().map(|tenant| app.bodies.open(tenant));
    let reading = timeout(WHOLE, whole(request, app.bounds.body, app.bounds.head, memory.as_mut())).await;
    let bytes = reading.map_err(|_| Refused::late("the body took too long to come"))??;
    Ok(Received { bytes, tenant, memory })
}

/// What bodies take that are on their way.
pub(crate) fn memory_of_bodies() -> MemoryLedger {
    const OF_TENANT: usize = 64 << 20;
    const OF_ALL: usize = 512 << 20;
    MemoryLedger::new(OF_TENANT, OF_ALL)
}

/// What is read and thrown away of a body that is too large: a client that is still sending would not hear the answer.
const THROWN_AWAY: usize = 64 << 20;
const THROWING: Duration = Duration::from_secs(10);

/// Of a body that is read as a whole, however slowly it comes.
const WHOLE: Duration = Duration::from_secs(120);

/// `stalled` is how long nothing may come of it.
async fn whole(
    request: Request,
    most: usize,
    stalled: Duration,
    mut memory: Option<&mut MemoryCharge>,
) -> Result<Bytes, Refused> {
    let asks_first = request.headers().contains_key(header::EXPECT);
    let mut body = request.into_body();
    let too_large = || Refused::new(Code::TooLarge, format!("the body is larger than the server takes: {most} bytes"));
    if asks_first && body.size_hint().lower() > most as u64 {
        return Err(too_large()); // it has sent nothing yet
    }
    let mut bytes = BytesMut::new();
    let late = |_| Refused::late("the body stopped coming");
    while let Some(frame) = timeout(stalled, body.frame()).await.map_err(late)? {
        let frame = frame.map_err(|error| Refused::invalid("body", error))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > most {
            let mut thrown = 0;
            let throw = async {
                while let Some(Ok(frame)) = body.frame().await
                    && thrown < THROWN_AWAY
                {
                    thrown += frame.into_data().map_or(0, |data| data.len());
                }
            };
            let _ = timeout(THROWING, throw).await;
            return Err(too_large());
        }
        if memory.as_mut().is_some_and(|memory| !memory.grow(data.len())) {
            drop(lingering(body)); // it is still sent, and the answer is to be heard
            let why = "the bodies that are on their way take all the memory that there is for them";
            return Err(Refused::new(Code::ServerBusy, why));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes.freeze())
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
