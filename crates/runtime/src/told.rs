//! What is told of a sandbox beside its record: what applies to it, and why it is awake or not.

use cabana_model::{Lifecycle, SandboxState, Time, Verdict};
use cabana_store::{Lease, Record};

use crate::{Runtime, Wanted};

pub struct Told {
    pub lifecycle: Lifecycle,
    pub why_awake: Option<String>,
    pub why_stopped: Option<String>,
    /// When it was last used.
    pub active: Time,
    pub lease: Option<Lease>,
}

impl Runtime {
    pub fn told(&self, record: &Record, wanted: &Wanted) -> Told {
        let (sandboxes, now) = (&self.0.sandboxes, self.0.clock.now());
        let lifecycle = sandboxes.lifecycle_of(wanted);
        let slot = sandboxes.of_physical(&record.physical);
        let active = slot.as_ref().map_or(record.active, |slot| slot.active().max(record.active));
        let why_awake = (record.state == SandboxState::Running).then(|| {
            let facts = slot.as_ref().map(|slot| sandboxes.facts(slot));
            match facts {
                Some(facts) if !facts.work.is_none() => facts.work.to_string(),
                Some(facts) => match lifecycle.decide(&facts, now) {
                    Verdict::Now(sentence) => format!("{}: it is seen to in a moment", sentence.why),
                    Verdict::At(time) => format!("used at {active:.0}, and left awake until {time:.0}"),
                    Verdict::Never => format!("used at {active:.0}, and left awake"),
                },
                None => format!("used at {active:.0}"),
            }
        });
        let why_stopped = match record.state {
            SandboxState::Running | SandboxState::Provisioning | SandboxState::Waking => None,
            _ => Some(record.why.clone()),
        };
        let lease = record.lease.clone().filter(|lease| lease.stands(now));
        Told { lifecycle, why_awake, why_stopped, active, lease }
    }
}
