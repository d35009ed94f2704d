//! What is done to one sandbox.

use axum::{Json, extract::State, http::StatusCode, response::Response};
use cabana_e2b_wire::control::{
    self, ConnectSandbox, ConnectSandboxV2, PauseSandbox, RefreshSandbox, ResumeSandbox, SetTimeout,
};
use cabana_runtime::{
    Lifecycle, SandboxState, Time,
    acts::sandbox::{Become, Change, Shape, Wake},
};

use super::{super::refused::Refused, create::until, one::One, told};
use crate::{
    App,
    auth::{Reader, User},
    extract::{Body, Path},
    long_answer,
};

type Made = Result<(StatusCode, Json<control::Sandbox>), Refused>;

impl One {
    async fn end_at(&self, end: Time) -> Result<(), Refused> {
        let lifecycle = Lifecycle { expires_at: Some(end), ..Lifecycle::default() };
        self.call(Change { lifecycle: Some(lifecycle), ..Change::default() }).await.map(drop)
    }

    fn ends(&self) -> Time {
        told::ends(&self.spec.wanted, &self.record)
    }

    /// Its time is only ever made longer by it.
    async fn connect(self, timeout: u32) -> Made {
        let end = until(self.app.runtime.clock().now(), timeout);
        let resumed = self.is_paused();
        if resumed {
            self.call(Wake { until: end }).await?;
            self.kept.bring_up(&self.app, &self.caller, &self.record.id).await?;
        } else if end > self.ends() {
            Box::pin(self.end_at(end)).await?;
        }
        let status = if resumed { StatusCode::CREATED } else { StatusCode::OK };
        Ok((status, Json(told::sandbox(&self.app, &self.caller, &self.record, &self.kept).await?)))
    }
}

pub(super) async fn show(
    State(app): State<App>,
    Reader(caller): Reader,
    Path(sandbox): Path<String>,
) -> Result<Response, Refused> {
    let one = One::find(&app, caller, &sandbox).await?;
    let mut memory = app.runtime.list_memory(&one.caller.tenant);
    long_answer::charge(&mut memory, std::slice::from_ref(&one.record))?;
    let detail = told::detail(&one).await?;
    Ok(long_answer::json(memory, move || detail).await?)
}

pub(super) async fn kill(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
) -> Result<StatusCode, Refused> {
    One::find(&app, caller, &sandbox).await?.call(Become(Shape::Deleted)).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn connect(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    Body(asked): Body<ConnectSandbox>,
) -> Made {
    One::find(&app, caller, &sandbox).await?.connect(asked.timeout).await
}

pub(super) async fn connect_v2(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    Body(asked): Body<ConnectSandboxV2>,
) -> Made {
    One::find(&app, caller, &sandbox).await?.connect(asked.timeout).await
}

/// One that is paused does not come to its end.
pub(super) async fn pause(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    Body(asked): Body<PauseSandbox>,
) -> Result<StatusCode, Refused> {
    let one = One::find(&app, caller, &sandbox).await?;
    if one.is_paused() {
        return Err(Refused::new(StatusCode::CONFLICT, format!("sandbox \"{sandbox}\" is already paused")));
    }
    one.end_at(told::FAR).await?;
    one.call(Become(if asked.memory { Shape::Paused } else { Shape::Stopped })).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn resume(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    Body(asked): Body<ResumeSandbox>,
) -> Made {
    let one = One::find(&app, caller, &sandbox).await?;
    if !one.is_paused() {
        return Err(Refused::new(StatusCode::CONFLICT, format!("sandbox \"{sandbox}\" is already running")));
    }
    one.connect(asked.timeout).await
}

pub(super) async fn timeout(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    Body(asked): Body<SetTimeout>,
) -> Result<StatusCode, Refused> {
    let one = One::find(&app, caller, &sandbox).await?;
    if one.is_paused() {
        return Err(Refused::not_found(format!("sandbox \"{sandbox}\" is paused")));
    }
    one.end_at(until(app.runtime.clock().now(), asked.timeout)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// As a connect, without an answer.
pub(super) async fn refresh(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    Body(asked): Body<RefreshSandbox>,
) -> Result<StatusCode, Refused> {
    const USUAL: u32 = 60;
    let one = One::find(&app, caller, &sandbox).await?;
    if one.record.state != SandboxState::Running {
        return Err(Refused::not_found(format!("sandbox \"{sandbox}\" not found")));
    }
    let end = until(app.runtime.clock().now(), asked.duration.unwrap_or(USUAL));
    if end > one.ends() {
        one.end_at(end).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}
