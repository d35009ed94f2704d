//! `POST /sandboxes` and `POST /v2/sandboxes`.

use axum::{Json, extract::State, http::StatusCode};
use cabana_e2b_wire::control::{self, NewSandbox, NewSandboxV2};
use cabana_runtime::{
    Action, Ask, Lifecycle, Place, Time, Wish,
    acts::sandbox::{Become, Ensure, Shape},
};

use super::{
    super::{guest::FRONT, kept::Kept, refused::Refused},
    base::{self, Found},
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
    // Of the request, and not of the sandbox, which has another end at each try.
    let said = serde_json::to_vec(&(timeout, secure, &asked)).unwrap_or_default();
    let key = once.key.map(|key| key.asking(&said));
    let Found { files, brought } = base::find(app, &caller, &asked.template_id).await?;
    let is_secure = secure || app.runtime.settings().e2b_always_secure;
    let kept = Kept::of_asked(&asked, timeout, is_secure, brought.clone());
    if !kept.is_public() && !secure {
        return Err(Refused::bad("a sandbox whose ports are not public has to be secure: say 'secure' too"));
    }
    let wish = Wish {
        limits: brought.limits(app.runtime.settings()).filter(|limits| app.runtime.fits(limits)),
        user: brought.user,
        env: brought.env.into_iter().chain(asked.env_vars).collect(),
        labels: asked.metadata,
        network: policy_of(asked.network.as_ref(), asked.allow_internet_access, &usual(app)?)?,
        lifecycle: lifecycle(
            until(app.runtime.clock().now(), timeout),
            on_timeout(asked.auto_pause, kept.pause_memory),
        ),
        ..files.wish()
    };
    let (mut wanted, _) = app.runtime.settings().wanted(wish)?;
    kept.put(&mut wanted);
    let ask = Ask { caller: caller.clone(), place: Place::New(Some(wanted)), key, lease: once.lease, front: FRONT };
    let made = app.runtime.call(ask, Ensure).await?.answer().await?;
    if let Err(error) = kept.bring_up(app, &caller, &made.sandbox).await {
        // Nobody was told of it, so nobody else can delete it.
        let ask = Ask { caller, place: Place::Sandbox(made.sandbox), key: None, lease: None, front: FRONT };
        app.runtime.call(ask, Become(Shape::Deleted)).await?.answer().await?;
        return Err(error.into());
    }
    let record = app.runtime.sandbox(&caller, &made.sandbox).await?;
    Ok((StatusCode::CREATED, Json(told::sandbox(app, &caller, &record, &kept).await?)))
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
