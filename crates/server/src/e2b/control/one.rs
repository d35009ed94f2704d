//! A sandbox that a request names.

use std::sync::Arc;

use cabana_e2b_wire::control;
use cabana_runtime::{Act, Ask, Caller, Place, Record, SandboxId};

use super::{
    super::{guest::FRONT, kept::Kept, refused::Refused},
    told,
};
use crate::{App, specs::Spec};

/// One of the caller's that this front made. What is another's is not found, in the same words as what nobody has.
pub(super) struct One {
    pub(super) app: App,
    pub(super) caller: Caller,
    pub(super) record: Record,
    pub(super) spec: Arc<Spec>,
    pub(super) kept: Arc<Kept>,
}

impl One {
    pub(super) async fn find(app: &App, caller: Caller, sandbox: &str) -> Result<Self, Refused> {
        let missing = || Refused::not_found(format!("sandbox \"{sandbox}\" not found"));
        let id = SandboxId::new(sandbox).map_err(|_| missing())?;
        let (record, spec) = app.sandbox(&caller, &id).await.map_err(|_| missing())?;
        let kept = spec.kept.clone().ok_or_else(missing)?;
        Ok(Self { app: app.clone(), caller, record, spec, kept })
    }

    pub(super) fn is_paused(&self) -> bool {
        told::state(self.record.state) == control::SandboxState::Paused
    }

    pub(super) async fn call<A: Act>(&self, act: A) -> Result<A::Answer, Refused> {
        self.call_at(Place::Sandbox(self.record.id.clone()), act).await
    }

    /// Of the same caller, somewhere else.
    pub(super) async fn call_at<A: Act>(&self, place: Place, act: A) -> Result<A::Answer, Refused> {
        let ask = Ask { caller: self.caller.clone(), place, key: None, lease: None, front: FRONT };
        Ok(self.app.runtime.call(ask, act).await?.answer().await?)
    }
}
