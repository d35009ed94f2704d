//! `POST /sandboxes` and `POST /v2/sandboxes`.

use axum::{Json, extract::State, http::StatusCode};
use cabana_e2b_wire::control::{self, NewSandbox, NewSandboxV2};
use cabana_runtime::{Action, Lifecycle, Place, Time, Wish, acts::sandbox::Ensure};
use cabana_sandbox::Base;

use super::{
    super::{guest::FRONT, kept::Kept, refused::Refused},
    network::{policy_of, usual},
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
    let kept = Kept::of_asked(&asked, timeout, secure);
    if !kept.is_public() && !secure {
        return Err(Refused::bad("a sandbox whose ports are not public has to be secure: say 'secure' too"));
    }
    let (base, snapshot) = base_of(app, &asked.template_id).await?;
    let wish = Wish {
        base,
        snapshot,
        env: asked.env_vars,
        labels: asked.metadata,
        network: policy_of(asked.network.as_ref(), asked.allow_internet_access, &usual(app)?)?,
        lifecycle: lifecycle(
            until(app.runtime.clock().now(), timeout),
            on_timeout(asked.auto_pause, kept.pause_memory),
        ),
        ..Wish::default()
    };
    let (mut wanted, _) = app.runtime.settings().wanted(wish)?;
    kept.put(&mut wanted);
    let tenant = caller.tenant.clone();
    let ask =
        cabana_runtime::Ask { caller, place: Place::New(Some(wanted)), key: once.key, lease: once.lease, front: FRONT };
    let made = app.runtime.call(ask, Ensure).await?.answer().await?;
    let record = app.runtime.sandbox(&tenant, &made.sandbox).await?;
    Ok((StatusCode::CREATED, Json(told::sandbox(app, &record).await?)))
}

/// A template of ours by its name, or a snapshot by its id. Where nobody has made `base`, it is the machine's own programs.
async fn base_of(app: &App, template: &str) -> Result<(Option<Base>, Option<cabana_runtime::SnapshotId>), Refused> {
    let name = template.split(':').next().unwrap_or_default();
    if let Ok(snapshot) = name.parse() {
        return Ok((None, Some(snapshot)));
    }
    match app.runtime.template(name).await {
        Ok(_) => Ok((Some(Base::Named(name.to_owned())), None)),
        Err(_) if name == "base" => Ok((Some(Base::Host), None)),
        Err(_) => Err(Refused::not_found(format!("template '{template}' not found"))),
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

pub(in crate::e2b) fn until(now: Time, seconds: u32) -> Time {
    now.saturating_add(jiff::SignedDuration::from_secs(seconds.into())).unwrap_or(Time::MAX)
}
