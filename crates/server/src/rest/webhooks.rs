//! Webhooks: addresses that changes are told to.

use axum::{Json, extract::State, http::StatusCode};
use cabana_runtime::{
    Act, Ask, Caller, Delivery, EventFilter, KeyId, Place, Time, Webhook, WebhookId,
    acts::webhook::{Add, Enable, Remove, Test},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    App,
    auth::{FRONT, Reader, User},
    error::{Answer, ErrorBody, Refused},
    extract::{Body, Path},
};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list, add))
        .routes(routes!(show, remove))
        .routes(routes!(test))
        .routes(routes!(enable))
}

/// A webhook, without its secret.
#[derive(Serialize, ToSchema)]
struct WebhookBody {
    #[schema(value_type = String)]
    id: WebhookId,
    #[schema(example = "https://example.com/hook")]
    url: String,
    /// Which types it hears of; `sandbox.*` is all that begin so.
    events: Vec<String>,
    /// The key that made it, where that is known. It goes on without that key.
    #[schema(value_type = Option<String>)]
    key: Option<KeyId>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Time,
    /// Since when nothing is sent there any more.
    #[schema(value_type = Option<String>, format = DateTime)]
    disabled_at: Option<Time>,
    /// Why that is so.
    why_disabled: Option<String>,
    /// How many have arrived.
    delivered: u64,
    /// How many were given up, because too many waited or it was disabled.
    dropped: u64,
}

impl WebhookBody {
    fn of(webhook: Webhook) -> Self {
        let (disabled_at, why_disabled) = webhook.disabled.unzip();
        Self {
            id: webhook.id,
            url: webhook.url,
            events: webhook.events.into(),
            key: webhook.key,
            created_at: webhook.created,
            disabled_at,
            why_disabled,
            delivered: webhook.delivered,
            dropped: webhook.dropped,
        }
    }
}

#[derive(Serialize, ToSchema)]
struct WebhooksBody {
    webhooks: Vec<WebhookBody>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewWebhookBody {
    /// Where events are sent, by POST. It must lead to the public network, unless the operator allows more.
    #[schema(example = "https://example.com/hook")]
    url: String,
    /// Which types it hears of: `sandbox.stopped`, or `sandbox.*` for all that begin so. All changes of sandboxes and tasks
    /// unless said otherwise.
    events: Option<Vec<String>>,
}

#[derive(Serialize, ToSchema)]
struct AddedBody {
    #[serde(flatten)]
    info: WebhookBody,
    /// What deliveries are signed with. Shown this once.
    #[schema(example = "whsec_0000000000000000000000000000000000000000000000000000000000000000")]
    secret: String,
}

/// A webhook with what it was told, and what waits.
#[derive(Serialize, ToSchema)]
struct ShownBody {
    #[serde(flatten)]
    info: WebhookBody,
    /// Newest first.
    deliveries: Vec<DeliveryBody>,
}

#[derive(Serialize, ToSchema)]
struct DeliveryBody {
    #[schema(example = "event_0198c0ffee0070008000000000000001")]
    event: String,
    #[serde(rename = "type")]
    #[schema(example = "sandbox.stopped")]
    kind: String,
    #[schema(value_type = String, format = DateTime)]
    made_at: Time,
    attempts: u32,
    /// What the last try was answered, or why it was not.
    said: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    delivered_at: Option<Time>,
    /// When it is tried again.
    #[schema(value_type = Option<String>, format = DateTime)]
    due_at: Option<Time>,
}

impl DeliveryBody {
    fn of(delivery: Delivery) -> Self {
        Self {
            event: delivery.event,
            kind: delivery.kind,
            made_at: delivery.made,
            attempts: delivery.attempts,
            said: delivery.said,
            delivered_at: delivery.ended,
            due_at: delivery.ended.is_none().then_some(delivery.due),
        }
    }
}

#[derive(Serialize, ToSchema)]
struct TriedBody {
    delivered: bool,
    /// What was answered, or why nothing was.
    #[schema(example = "204 No Content")]
    said: String,
    duration_ms: u64,
}

fn id(text: &str) -> Answer<WebhookId> {
    text.parse().map_err(|error| Refused::invalid("webhook", error))
}

async fn call<A: Act>(app: &App, caller: Caller, act: A) -> Answer<A::Answer> {
    let ask = Ask { caller, place: Place::Nowhere, key: None, lease: None, front: FRONT };
    Ok(app.runtime.call(ask, act).await?.answer().await?)
}

/// Tells an address of what happens to the tenant's sandboxes and tasks, from now on.
///
/// Each event is a POST with the same JSON as in `/v1/events`, signed with the secret that is in this answer and nowhere else.
/// They come in order and at least once; one that is not answered with 2xx is tried again for three days.
#[utoipa::path(post, path = "/v1/webhooks", tag = "webhooks", request_body = NewWebhookBody, responses(
    (status = 201, body = AddedBody),
    (status = "default", body = ErrorBody),
))]
async fn add(
    State(app): State<App>,
    User(caller): User,
    Body(body): Body<NewWebhookBody>,
) -> Answer<(StatusCode, Json<AddedBody>)> {
    let events = body.events.map(EventFilter::new).transpose().map_err(|error| Refused::invalid("events", error))?;
    let add = Add::new(body.url, events)?;
    let (id, secret) = (add.id, add.secret.clone());
    call(&app, caller.clone(), add).await?;
    let (webhook, _) = app.runtime.webhook(&caller, id).await?;
    Ok((StatusCode::CREATED, Json(AddedBody { info: WebhookBody::of(webhook), secret })))
}

/// The tenant's webhooks, oldest first.
#[utoipa::path(get, path = "/v1/webhooks", tag = "webhooks", responses(
    (status = 200, body = WebhooksBody),
    (status = "default", body = ErrorBody),
))]
async fn list(State(app): State<App>, Reader(caller): Reader) -> Answer<Json<WebhooksBody>> {
    let webhooks = app.runtime.webhooks(&caller).await?;
    Ok(Json(WebhooksBody { webhooks: webhooks.into_iter().map(WebhookBody::of).collect() }))
}

/// One webhook, with what waits for it and the last that it was told.
#[utoipa::path(get, path = "/v1/webhooks/{webhook}", tag = "webhooks",
    params(("webhook" = String, Path, pattern = "^webhook_[0-9a-f]{32}$")), responses(
    (status = 200, body = ShownBody),
    (status = "default", body = ErrorBody),
))]
async fn show(State(app): State<App>, Reader(caller): Reader, Path(webhook): Path<String>) -> Answer<Json<ShownBody>> {
    let (webhook, deliveries) = app.runtime.webhook(&caller, id(&webhook)?).await?;
    let deliveries = deliveries.into_iter().map(DeliveryBody::of).collect();
    Ok(Json(ShownBody { info: WebhookBody::of(webhook), deliveries }))
}

/// Tells it nothing more. What waits for it is gone.
#[utoipa::path(delete, path = "/v1/webhooks/{webhook}", tag = "webhooks",
    params(("webhook" = String, Path, pattern = "^webhook_[0-9a-f]{32}$")), responses(
    (status = 204),
    (status = "default", body = ErrorBody),
))]
async fn remove(State(app): State<App>, User(caller): User, Path(webhook): Path<String>) -> Answer<StatusCode> {
    call(&app, caller, Remove(id(&webhook)?)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// One that was disabled is told again, of what happens from now on.
#[utoipa::path(post, path = "/v1/webhooks/{webhook}/enable", tag = "webhooks",
    params(("webhook" = String, Path, pattern = "^webhook_[0-9a-f]{32}$")), responses(
    (status = 200, body = WebhookBody),
    (status = "default", body = ErrorBody),
))]
async fn enable(State(app): State<App>, User(caller): User, Path(webhook): Path<String>) -> Answer<Json<WebhookBody>> {
    let id = id(&webhook)?;
    call(&app, caller.clone(), Enable(id)).await?;
    let (webhook, _) = app.runtime.webhook(&caller, id).await?;
    Ok(Json(WebhookBody::of(webhook)))
}

/// Sends an event of the type `webhook.test` there, at once and once, and says what came of it.
#[utoipa::path(post, path = "/v1/webhooks/{webhook}/test", tag = "webhooks",
    params(("webhook" = String, Path, pattern = "^webhook_[0-9a-f]{32}$")), responses(
    (status = 200, body = TriedBody),
    (status = "default", body = ErrorBody),
))]
async fn test(State(app): State<App>, User(caller): User, Path(webhook): Path<String>) -> Answer<Json<TriedBody>> {
    let tried = call(&app, caller, Test(id(&webhook)?)).await?;
    let duration_ms = u64::try_from(tried.spent.as_millis()).unwrap_or(u64::MAX);
    Ok(Json(TriedBody { delivered: tried.delivered, said: tried.said, duration_ms }))
}
