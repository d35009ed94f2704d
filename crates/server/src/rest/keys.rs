//! Keys: who may do what.

use axum::{Json, extract::State, http::StatusCode};
use cabana_runtime::{Key, KeyId, Role, Tenant, Time, WantedKey};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App,
    auth::Admin,
    error::{Answer, ErrorBody, Refused},
    extract::{Body, Path, Query},
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, add)).routes(routes!(revoke))
}

/// A key, without its text.
#[derive(Serialize, ToSchema)]
struct KeyBody {
    #[schema(value_type = String)]
    id: KeyId,
    #[schema(value_type = String, example = "default")]
    tenant: Tenant,
    /// `read`, `use` or `admin`.
    #[schema(value_type = String, example = "use")]
    role: Role,
    name: String,
    /// Whom it stands for: it uses that user's scopes alone.
    subject: Option<String>,
    /// Whether it may name other users than its subject.
    any_subject: bool,
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
    #[schema(value_type = Option<String>, format = DateTime)]
    revoked_at: Option<Time>,
}

impl KeyBody {
    fn of(key: Key) -> Self {
        Self {
            id: key.id,
            tenant: key.tenant,
            role: key.role,
            name: key.name,
            subject: key.subject,
            any_subject: key.any_subject,
            created_at: key.created,
            expires_at: key.expires,
            revoked_at: key.revoked,
        }
    }
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewKeyBody {
    /// Whose it is; `default` unless said otherwise.
    #[schema(value_type = Option<String>)]
    tenant: Option<String>,
    /// `read`, `use` or `admin`.
    #[schema(value_type = String, example = "use")]
    role: Role,
    #[serde(default)]
    name: String,
    /// Whom it stands for: a user, whose scopes alone it uses.
    subject: Option<String>,
    /// Its subject is only whom it means where it names no user.
    #[serde(default)]
    any_subject: bool,
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Time>,
}

#[derive(Serialize, ToSchema)]
struct IssuedBody {
    #[serde(flatten)]
    info: KeyBody,
    /// Shown this once: only its digest is kept.
    #[schema(example = "e2b_0000000000000000000000000000000000000000")]
    key: String,
}

/// Makes a key. Its text is in this answer and nowhere else.
#[utoipa::path(post, path = "/v1/keys", tag = "keys", request_body = NewKeyBody, responses(
    (status = 201, body = IssuedBody),
    (status = "default", body = ErrorBody),
))]
async fn add(
    State(app): State<App>,
    Admin(caller): Admin,
    Body(body): Body<NewKeyBody>,
) -> Answer<(StatusCode, Json<IssuedBody>)> {
    const LONGEST: usize = 200;
    let tenant = match body.tenant {
        Some(tenant) => Tenant::new(tenant).map_err(|error| Refused::invalid("tenant", error))?,
        None => caller.tenant.clone(),
    };
    for (field, text) in [("name", Some(&body.name)), ("subject", body.subject.as_ref())] {
        if text.is_some_and(|text| text.len() > LONGEST || text.chars().any(char::is_control)) {
            return Err(Refused::invalid(field, format!("is longer than {LONGEST} bytes or no plain text")));
        }
    }
    let NewKeyBody { role, name, subject, any_subject, expires_at: expires, .. } = body;
    let wanted = WantedKey { tenant, role, name, subject, any_subject, expires, by: Some(caller) };
    let issued = app.runtime.access().issue(wanted).await?;
    Ok((StatusCode::CREATED, Json(IssuedBody { info: KeyBody::of(issued.key), key: issued.text })))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct Which {
    /// Only those of this tenant.
    tenant: Option<String>,
}

#[derive(Serialize, ToSchema)]
struct KeysBody {
    keys: Vec<KeyBody>,
}

/// All keys that there are or were.
#[utoipa::path(get, path = "/v1/keys", tag = "keys", params(Which), responses(
    (status = 200, body = KeysBody),
    (status = "default", body = ErrorBody),
))]
async fn list(State(app): State<App>, Admin(_caller): Admin, Query(which): Query<Which>) -> Answer<Json<KeysBody>> {
    let tenant = which.tenant.map(Tenant::new).transpose().map_err(|error| Refused::invalid("tenant", error))?;
    let keys = app.runtime.access().list(tenant.as_ref()).await?;
    Ok(Json(KeysBody { keys: keys.into_iter().map(KeyBody::of).collect() }))
}

/// Makes a key open nothing any more, at once.
#[utoipa::path(delete, path = "/v1/keys/{key}", tag = "keys", params(("key" = String, Path, pattern = "^key_[0-9a-f]{32}$")), responses(
    (status = 200, body = KeyBody),
    (status = "default", body = ErrorBody),
))]
async fn revoke(State(app): State<App>, Admin(caller): Admin, Path(key): Path<String>) -> Answer<Json<KeyBody>> {
    let id: KeyId = key.parse().map_err(|error| Refused::invalid("key", error))?;
    Ok(Json(KeyBody::of(app.runtime.access().revoke(&caller, id).await?)))
}
