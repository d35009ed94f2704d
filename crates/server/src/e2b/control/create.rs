//! `POST /sandboxes` and `POST /v2/sandboxes`.

use axum::{Json, extract::State, http::StatusCode};
use cabana_e2b_wire::control::{self, NewSandbox, NewSandboxV2};
use cabana_runtime::{
    Action, Ask, Lifecycle, Place, SnapshotId, Time, Wish,
    acts::sandbox::{Become, Ensure, Shape},
};
use cabana_sandbox::{Base, NetworkPolicy, Service, Template};

use super::{
    super::{guest::FRONT, kept::Kept, refused::Refused},
    told,
};
use crate::{
    App,
    auth::{Once, User},
    extract::Body,
};

type Made = Result<(StatusCode, Json<control::Sandbox>), Refused>;

pub(super) async fn create(
    State(app): State<App>,
    User(caller): User,
    once: Once,
    Body(new): Body<NewSandbox>,
) -> Made {
    make(&app, caller, once, new.timeout, new.secure, new.wanted).await
}

pub(super) async fn create_v2(
    State(app): State<App>,
    User(caller): User,
    once: Once,
    Body(new): Body<NewSandboxV2>,
) -> Made {
    make(&app, caller, once, new.timeout, true, new.wanted).await
}

async fn make(
    app: &App,
    caller: cabana_runtime::Caller,
    once: Once,
    timeout: u32,
    secure: bool,
    asked: control::Wanted,
) -> Made {
    let Found { base, snapshot, service } = found(app, &asked.template_id).await?;
    let kept = Kept::of_asked(&asked, secure, service);
    let wish = Wish {
        base,
        snapshot,
        env: asked.env_vars,
        labels: asked.metadata,
        network: network_of(asked.network.as_ref(), asked.allow_internet_access),
        lifecycle: lifecycle(
            until(app.runtime.clock().now(), timeout),
            on_timeout(asked.auto_pause, kept.pause_memory),
        ),
        ..Wish::default()
    };
    let (mut wanted, _) = app.runtime.settings().wanted(wish)?;
    kept.put(&mut wanted);
    let ask =
        Ask { caller: caller.clone(), place: Place::New(Some(wanted)), key: once.key, lease: once.lease, front: FRONT };
    let made = app.runtime.call(ask, Ensure).await?.answer().await?;
    if let Err(error) = kept.bring_up(app, &caller, &made.sandbox).await {
        // Nobody was told of it, so nobody else can delete it.
        let ask = Ask { caller, place: Place::Sandbox(made.sandbox), key: None, lease: None, front: FRONT };
        app.runtime.call(ask, Become(Shape::Deleted)).await?.answer().await?;
        return Err(error.into());
    }
    let record = app.runtime.sandbox(&caller.tenant, &made.sandbox).await?;
    Ok((StatusCode::CREATED, Json(told::sandbox(app, &record).await?)))
}

/// What a name of a template leads to.
#[derive(Default)]
struct Found {
    base: Option<Base>,
    snapshot: Option<SnapshotId>,
    service: Option<Service>,
}

/// A template of ours by its name, or a snapshot by its id. Where nobody has made `base`, it is the machine's own programs.
async fn found(app: &App, template: &str) -> Result<Found, Refused> {
    let name = template.split(':').next().unwrap_or_default();
    if let Ok(snapshot) = name.parse() {
        return Ok(Found { snapshot: Some(snapshot), ..Found::default() });
    }
    match app.runtime.template(name).await {
        Ok(Template { service, .. }) => {
            Ok(Found { base: Some(Base::Named(name.to_owned())), service, ..Found::default() })
        }
        Err(_) if name == "base" => Ok(Found { base: Some(Base::Host), ..Found::default() }),
        Err(_) => Err(Refused::not_found(format!("template '{template}' not found"))),
    }
}

/// Everything, nothing, or what is listed.
pub(super) fn network_of(network: Option<&control::NetworkConfig>, internet: Option<bool>) -> Option<NetworkPolicy> {
    match (network, internet) {
        (_, Some(false)) => Some(NetworkPolicy::Off),
        (Some(network), _) if !network.allow_out.is_empty() => Some(NetworkPolicy::Allow(network.allow_out.clone())),
        (Some(network), _) if network.deny_out.iter().any(|rule| rule == "0.0.0.0/0") => Some(NetworkPolicy::Off),
        (_, Some(true)) => Some(NetworkPolicy::Public),
        _ => None,
    }
}

fn on_timeout(pauses: bool, memory: bool) -> Action {
    match (pauses, memory) {
        (false, _) => Action::Delete,
        (true, true) => Action::Pause,
        (true, false) => Action::Stop,
    }
}

/// Its time is all that ends it.
fn lifecycle(until: Time, on_expire: Action) -> Lifecycle {
    Lifecycle {
        idle_sec: Some(0),
        hard_sec: Some(0),
        expires_at: Some(until),
        on_expire: Some(on_expire),
        ..Lifecycle::default()
    }
}

pub(super) fn until(now: Time, seconds: u32) -> Time {
    now.saturating_add(jiff::SignedDuration::from_secs(seconds.into())).unwrap_or(Time::MAX)
}
