//! A sandbox as a whole.

use std::collections::HashSet;

use cabana_model::{Clamped, Lifecycle, Mount, MountMode, MountSource, SandboxId, Time, VolumeName};
use cabana_sandbox::{Limits, NetworkPolicy};
use cabana_store::By;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Act, Cx, MemoryCharge, Mounts, Needs, Result, Wanted, check_kept_env, memory::json_len};

/// Absent: made. Stopped or paused: started. Running: as it is.
pub struct Ensure;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ensured {
    pub sandbox: SandboxId,
    /// Whether it was not there before.
    pub created: bool,
}

impl Act for Ensure {
    const VERB: &'static str = "ensure";
    type Answer = Ensured;

    fn needs(&self) -> Needs {
        Needs::Running
    }

    fn stores(&self) -> bool {
        false
    }

    fn digest(&self) -> [u8; 32] {
        [0; 32]
    }

    fn argv(&self) -> Vec<String> {
        Vec::new()
    }

    async fn run(self, cx: Cx) -> Result<Ensured> {
        Ok(Ensured { sandbox: cx.record()?.id.clone(), created: cx.made })
    }
}

/// Running, and from now on until this time. One that runs already ends no sooner than it would; one that cannot be started keeps
/// the end that it had.
pub struct Wake {
    pub until: Time,
}

impl Act for Wake {
    const VERB: &'static str = "wake";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Record
    }

    fn stores(&self) -> bool {
        false
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.until.to_string()).into()
    }

    fn argv(&self) -> Vec<String> {
        vec![format!("until {}", self.until)]
    }

    async fn run(self, cx: Cx) -> Result<()> {
        let (sandboxes, slot) = (&cx.runtime.0.sandboxes, cx.slot().await?);
        let until = self.until;
        let is_enough = |end: Option<Time>| slot.live().is_some() && end.is_none_or(|end| end >= until);
        if is_enough(slot.wanted()?.lifecycle.expires_at) {
            return Ok(());
        }
        // First its end: where that has come, it would be put to rest again as soon as it runs.
        let give = |wanted: &mut Wanted| {
            let before = wanted.lifecycle.expires_at;
            if !is_enough(before) {
                wanted.lifecycle.expires_at = Some(until);
            }
            Ok(before)
        };
        let before = sandboxes.change(&slot, 0, give).await?;
        match sandboxes.running(&slot, Self::VERB).await {
            Ok(_) => Ok(()),
            Err(error) => {
                // Another one that it was given meanwhile stays.
                let take_back = |wanted: &mut Wanted| {
                    if wanted.lifecycle.expires_at == Some(until) {
                        wanted.lifecycle.expires_at = before;
                    }
                    Ok(())
                };
                sandboxes.change(&slot, 0, take_back).await?;
                Err(error)
            }
        }
    }
}

/// What its shape is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    Stopped,
    Paused,
    /// Stopped first, if it has to be.
    Archived,
    Deleted,
}

pub struct Become(pub Shape);

impl Act for Become {
    const VERB: &'static str = "become";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Record
    }

    fn stores(&self) -> bool {
        false
    }

    fn removes(&self) -> bool {
        matches!(self.0, Shape::Stopped | Shape::Deleted)
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(format!("{:?}", self.0)).into()
    }

    fn argv(&self) -> Vec<String> {
        let name = match self.0 {
            Shape::Stopped => "stopped",
            Shape::Paused => "paused",
            Shape::Archived => "archived",
            Shape::Deleted => "deleted",
        };
        vec![name.to_owned()]
    }

    async fn run(self, cx: Cx) -> Result<()> {
        let (sandboxes, slot) = (&cx.runtime.0.sandboxes, cx.slot().await?);
        let change = crate::sandboxes::Change::asked(By::Somebody(cx.lease), "asked for");
        match self.0 {
            Shape::Stopped => {
                let is_stopped = sandboxes.stop(&slot, change).await?;
                cx.note(|notes| notes.is_void = !is_stopped);
                Ok(())
            }
            Shape::Paused => sandboxes.pause(&slot, change).await,
            Shape::Archived => sandboxes.archive(&slot, change).await,
            Shape::Deleted => sandboxes.delete(&slot, change).await,
        }
    }
}

/// Other limits, another network, other variables, other mounts: of one that runs, and of one that does not.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Change {
    pub limits: Option<Limits>,
    pub network: Option<NetworkPolicy>,
    pub env: Option<std::collections::BTreeMap<String, String>>,
    pub mount: Option<Mount>,
    pub extra_mounts: Option<Vec<Mount>>,
    /// What is said of it takes the place of what was said before; the rest stays.
    pub lifecycle: Option<Lifecycle>,
    /// What a front keeps of it, by the front's name.
    pub note: Option<(String, serde_json::Value)>,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// What its profile has given instead of what was asked.
    pub clamped: Vec<Clamped>,
}

impl Act for Change {
    const VERB: &'static str = "change";
    type Answer = Changed;

    fn needs(&self) -> Needs {
        match (&self.limits, &self.network) {
            (None, None) => Needs::Record,
            _ => Needs::Running,
        }
    }

    fn stores(&self) -> bool {
        false
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(serde_json::to_vec(self).unwrap_or_default()).into()
    }

    fn held_bytes(&self) -> usize {
        json_len(self)
    }

    fn argv(&self) -> Vec<String> {
        let named = [
            ("limits", self.limits.is_some()),
            ("network", self.network.is_some()),
            ("env", self.env.is_some()),
            ("mount", self.mount.is_some()),
            ("extra_mounts", self.extra_mounts.is_some()),
            ("lifecycle", self.lifecycle.is_some()),
            ("note", self.note.is_some()),
        ];
        named.iter().filter(|(_, there)| *there).map(|(name, _)| (*name).to_owned()).collect()
    }

    async fn run(self, cx: Cx) -> Result<Changed> {
        let slot = cx.runtime.0.sandboxes.of_id(&cx.caller, &cx.record()?.id).await?;
        let capabilities = cx.runtime.0.sandboxes.provider().capabilities();
        let sent = cx.note(|notes| notes.memory.as_ref().map_or(0, MemoryCharge::used));
        let was = slot.wanted()?;
        let altered = cx.runtime.settings().altered(&was, self.limits, self.network.as_ref());
        let (limits, network, mut clamped) = altered;
        self.limits.map_or(Ok(()), |_| capabilities.check_limits(&limits))?;
        if self.network.is_some() {
            cx.runtime.check_network(&cx.caller, &network).await?;
            capabilities.check_network(&network)?;
        }
        self.env.as_ref().map_or(Ok(()), check_kept_env)?;
        let (profile, sandboxes) = (cx.runtime.settings().profile_of(&was), &cx.runtime.0.sandboxes);
        // What is not said is as whoever was before in the line has left it, and not as it was when this was asked for.
        let alter = |wanted: &mut Wanted| {
            wanted.sandbox.limits = self.limits.map_or(wanted.sandbox.limits, |_| limits);
            wanted.sandbox.network = self.network.map_or_else(|| wanted.sandbox.network.clone(), |_| network);
            wanted.env = self.env.unwrap_or_else(|| std::mem::take(&mut wanted.env));
            if self.mount.is_some() || self.extra_mounts.is_some() {
                let had = written_volumes(&wanted.mounts);
                let Mounts { primary, extra } = std::mem::take(&mut wanted.mounts);
                wanted.mounts = Mounts { primary: self.mount.or(primary), extra: self.extra_mounts.unwrap_or(extra) };
                clamped.extend(profile.and_then(|profile| crate::profiles::hold(profile, &mut wanted.mounts)));
                // Commands that fill one after the other would do so faster than anybody looks.
                if !written_volumes(&wanted.mounts).is_subset(&had) {
                    cx.check_room()?;
                }
            }
            if let Some(lifecycle) = self.lifecycle {
                let before = sandboxes.lifecycle_of(wanted);
                wanted.lifecycle = lifecycle.or(&wanted.lifecycle);
                wanted.lifecycle.check()?;
                // A limit is not held up by a lease: who sets one would end what the lease is there for.
                if sandboxes.lifecycle_of(wanted).is_harsher_than(&before) {
                    sandboxes.check_lease(&slot, By::Somebody(cx.lease))?;
                }
            }
            wanted.notes.extend(self.note);
            Ok(Changed { clamped })
        };
        sandboxes.change(&slot, sent, alter).await
    }
}

fn written_volumes(mounts: &Mounts) -> HashSet<VolumeName> {
    let written = mounts.primary.iter().chain(&mounts.extra).filter(|mount| mount.mode() == MountMode::Rw);
    let volumes = written.filter_map(|mount| match &mount.source {
        Some(MountSource::Volume(name)) => Some(name.clone()),
        Some(MountSource::Host(_)) | None => None,
    });
    volumes.collect()
}
