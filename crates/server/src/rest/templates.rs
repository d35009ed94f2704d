//! Templates: made and removed by the operator, and used by everybody.

use std::collections::BTreeMap;

use axum::{
    Json,
    body::Body as HttpBody,
    extract::State,
    http::{HeaderMap, StatusCode},
    middleware::from_fn,
};
use cabana_runtime::{
    Place, Role,
    acts::template::{Add, Remove},
};
use cabana_sandbox::{Overrides, SandboxPath, Service, Template, User};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::files_content::{length_of, received};
use crate::{
    App,
    auth::{Admin, Once, Reader, ask},
    error::{Answer, ErrorBody, Refused},
    extract::{Path, Query},
    linger::linger,
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list, add)).routes(routes!(get, remove)).layer(from_fn(linger))
}

/// What sandboxes are made from.
#[derive(Serialize, ToSchema)]
struct TemplateBody {
    name: String,
    /// What is wrong with one that is damaged. The rest is not known then.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    about: Option<AboutBody>,
}

#[derive(Serialize, ToSchema)]
struct AboutBody {
    /// Who commands run as, unless they say otherwise.
    user: String,
    workdir: String,
    /// Names alone.
    env: Vec<String>,
    /// Whether setuid programs such as sudo gain something inside.
    sudo: bool,
    /// What runs in its sandboxes from their start on, if it is E2B's protocol that they are made by.
    #[serde(skip_serializing_if = "Option::is_none")]
    start: Option<String>,
    /// Succeeds once what was started is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    ready: Option<String>,
    #[schema(format = DateTime)]
    made_at: String,
    /// What it was made from. For the operator: it may be a path of the server's machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    /// The lowest first.
    layers: Vec<String>,
}

impl TemplateBody {
    fn of(template: Template, asks: Role) -> Self {
        let Template { name, layers, defaults, sudo, service, made, source } = template;
        let (start, ready) = service.map(|service| (service.start, service.ready)).unzip();
        let about = AboutBody {
            user: defaults.user.to_string(),
            workdir: defaults.workdir.to_string(),
            env: defaults.env.into_keys().collect(),
            sudo,
            start,
            ready: ready.flatten(),
            made_at: made,
            source: (asks == Role::Admin).then_some(source),
            layers: layers.iter().map(ToString::to_string).collect(),
        };
        Self { name, error: None, about: Some(about) }
    }

    fn damaged(name: String, error: &cabana_sandbox::Error, asks: Role) -> Self {
        let error = match asks {
            Role::Admin => error.to_string(),
            Role::Read | Role::Use => "it is damaged: tell the operator".to_owned(),
        };
        Self { name, error: Some(error), about: None }
    }
}

#[derive(Serialize, ToSchema)]
struct TemplatesBody {
    templates: Vec<TemplateBody>,
}

/// All templates, by name. They are the same for every tenant.
#[utoipa::path(get, path = "/v1/templates", tag = "templates", responses(
    (status = 200, body = TemplatesBody),
    (status = "default", body = ErrorBody),
))]
async fn list(State(app): State<App>, Reader(caller): Reader) -> Answer<Json<TemplatesBody>> {
    let one = |(name, found)| match found {
        Ok(template) => TemplateBody::of(template, caller.role),
        Err(error) => TemplateBody::damaged(name, &error, caller.role),
    };
    Ok(Json(TemplatesBody { templates: app.runtime.templates().await?.into_iter().map(one).collect() }))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
struct AddQuery {
    #[param(pattern = "^[a-z0-9][a-z0-9._-]{0,63}$")]
    name: String,
    /// Who commands run as, unless they say otherwise: by name or by number.
    user: Option<String>,
    /// Where commands start, unless they say otherwise.
    workdir: Option<String>,
    /// Whether setuid programs such as sudo gain something inside.
    #[serde(default)]
    sudo: bool,
    /// A command for the shell that runs in its sandboxes from their start on, if it is E2B's protocol that they are made by.
    start: Option<String>,
    /// A command for the shell that succeeds once what `start` began is there.
    ready: Option<String>,
}

/// Makes a template of a root file system: the body is a tar of it, plain or packed with gzip or zstd. Variables for every
/// command are a JSON object in the header `Cabana-Env`, since an address may be written down on its way.
#[utoipa::path(post, path = "/v1/templates", tag = "templates", params(AddQuery, ("Cabana-Env" = Option<String>, Header)), request_body(content = String, content_type = "application/x-tar"), responses(
    (status = 201, body = TemplateBody),
    (status = "default", body = ErrorBody),
))]
async fn add(
    State(app): State<App>,
    Admin(caller): Admin,
    Query(query): Query<AddQuery>,
    once: Once,
    headers: HeaderMap,
    body: HttpBody,
) -> Answer<(StatusCode, Json<TemplateBody>)> {
    let role = caller.role;
    let wishes = Overrides {
        user: query.user.map(User::new).transpose().map_err(|error| Refused::invalid("user", error))?,
        workdir: query.workdir.map(SandboxPath::new).transpose().map_err(|error| Refused::invalid("workdir", error))?,
        env: variables(&headers)?,
        sudo: query.sudo,
        service: service(query.start, query.ready)?,
    };
    let seat = app.runtime.seat_incoming(&caller.tenant, length_of(&headers))?;
    let add = Add { name: query.name, wishes, body: received(seat, body) };
    let call = app.runtime.call(ask(caller, Place::Nowhere, once), add).await?;
    let id = call.id();
    let added = call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    let template = app.runtime.template(&added.name).await?;
    Ok((StatusCode::CREATED, Json(TemplateBody::of(template, role))))
}

/// What is wrong with them is said without a word of them: values are secrets.
fn variables(headers: &HeaderMap) -> Answer<BTreeMap<String, String>> {
    let Some(text) = headers.get("cabana-env") else { return Ok(BTreeMap::new()) };
    let bad = |why: &str| Refused::invalid("Cabana-Env", why);
    let all: BTreeMap<String, String> =
        serde_json::from_slice(text.as_bytes()).map_err(|_| bad("is no JSON object of texts"))?;
    let good = |name: &str| !name.is_empty() && !name.contains(['=', '\0']);
    if all.iter().any(|(name, value)| !good(name) || value.contains('\0')) {
        return Err(bad("has a name that is empty or has an = in it, or a NUL"));
    }
    Ok(all)
}

/// One template.
#[utoipa::path(get, path = "/v1/templates/{template}", tag = "templates", params(("template" = String, Path)), responses(
    (status = 200, body = TemplateBody),
    (status = "default", body = ErrorBody),
))]
async fn get(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(template): Path<String>,
) -> Answer<Json<TemplateBody>> {
    Ok(Json(TemplateBody::of(app.runtime.template(&template).await?, caller.role)))
}

/// Lets the name go. One that sandboxes were made from stays.
#[utoipa::path(delete, path = "/v1/templates/{template}", tag = "templates", params(("template" = String, Path)), responses(
    (status = 204),
    (status = "default", body = ErrorBody),
))]
async fn remove(
    State(app): State<App>,
    Admin(caller): Admin,
    Path(template): Path<String>,
    once: Once,
) -> Answer<StatusCode> {
    let call = app.runtime.call(ask(caller, Place::Nowhere, once), Remove(template)).await?;
    let id = call.id();
    call.answer().await.map_err(|error| Refused::from(error).of_call(id))?;
    Ok(StatusCode::NO_CONTENT)
}

fn service(start: Option<String>, ready: Option<String>) -> Result<Option<Service>, Refused> {
    match (start, ready) {
        (Some(start), ready) => Ok(Some(Service { start, ready })),
        (None, Some(_)) => Err(Refused::invalid("ready", "is for what `start` begins, and that is not given")),
        (None, None) => Ok(None),
    }
}
