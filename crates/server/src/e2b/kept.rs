//! What of E2B's words a sandbox keeps beside what ours say, in its record.

use cabana_e2b_wire::control::{NetworkConfig, Wanted as Asked};
use cabana_runtime::{BringUp, Caller, SandboxId, Wanted};
use serde::{Deserialize, Serialize};

use super::{brought::Brought, guest::FRONT};
use crate::App;

/// The name of this front's note.
const NOTE: &str = "e2b";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    /// As it was named: lists filter by it.
    pub(super) template: String,
    /// Whether its agent asks for the token.
    pub(super) secure: bool,
    pub(super) auto_resume: bool,
    /// For how long it was made: whoever wakes it gives it as much again.
    #[serde(default)]
    pub(super) timeout: u32,
    /// Whether the pause at the end of its time keeps the memory.
    pub(super) pause_memory: bool,
    #[serde(default)]
    pub(super) network: Option<NetworkConfig>,
    #[serde(default)]
    pub(super) allow_internet_access: Option<bool>,
    /// By what it was made from: a snapshot of it brings the same.
    #[serde(default)]
    pub(super) brought: Brought,
}

impl Kept {
    pub(super) fn of_asked(asked: &Asked, timeout: u32, secure: bool, brought: Brought) -> Self {
        Self {
            template: asked.template_id.clone(),
            secure,
            auto_resume: asked.resumes_by_itself(),
            timeout,
            pause_memory: asked.auto_pause_memory,
            network: asked.network.clone(),
            allow_internet_access: asked.allow_internet_access,
            brought,
        }
    }

    /// `None`: it was not made by this front.
    pub(crate) fn of(wanted: &Wanted) -> Option<Self> {
        Self::deserialize(wanted.notes.get(NOTE)?).ok()
    }

    pub(super) fn put(&self, wanted: &mut Wanted) {
        wanted.notes.extend(self.note());
    }

    /// As its record has it, by the front's name.
    pub(super) fn note(&self) -> Option<(String, serde_json::Value)> {
        Some((NOTE.to_owned(), serde_json::to_value(self).ok()?))
    }

    /// Once it began to run.
    pub(super) async fn bring_up(&self, app: &App, caller: &Caller, sandbox: &SandboxId) -> cabana_runtime::Result<()> {
        let Some(service) = self.brought.service() else { return Ok(()) };
        let Brought { user, workdir: cwd, .. } = self.brought.clone();
        let what = BringUp { caller, front: FRONT, sandbox, template: &self.template, service: &service, user, cwd };
        app.runtime.bring_up(what).await
    }

    pub(super) fn is_public(&self) -> bool {
        self.network.as_ref().is_none_or(|network| network.allow_public_traffic)
    }
}
