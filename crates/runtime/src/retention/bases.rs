//! What sandboxes are made from: snapshots and templates that nobody uses, and the layers that go with them.

use std::collections::{HashMap, HashSet};

use cabana_model::{
    SnapshotState, Tenant, Time,
    retention::{Kept, Kind},
};
use cabana_sandbox::{Base, SandboxSpec};
use cabana_store::{Snapshot, Used, UsedKind};

use super::Pass;
use crate::{Result, Wanted};

/// How many are looked at at once.
const AT_ONCE: u32 = 1000;

/// What a sandbox of this spec uses.
pub(crate) fn used_by(spec: &SandboxSpec) -> Option<(UsedKind, String)> {
    match &spec.base {
        Base::Named(name) => Some((UsedKind::Template, name.clone())),
        Base::Snapshot(name) => Some((UsedKind::Snapshot, name.to_string())),
        Base::Host | Base::Layers(_) => None,
    }
}

/// Since when nobody uses what.
struct Uses {
    now: HashSet<(UsedKind, String)>,
    last: HashMap<(UsedKind, String), Time>,
}

impl Uses {
    fn kept(&self, kind: UsedKind, name: &str, made: Time) -> Kept {
        let key = (kind, name.to_owned());
        let last = self.last.get(&key).copied().unwrap_or(made);
        Kept { over: Some(last.max(made)), needed: self.now.contains(&key) }
    }
}

impl Pass<'_> {
    pub(super) async fn bases(&mut self) -> Result<()> {
        let mut going = Vec::new();
        let snapshots = self.runtime.store().all_snapshots().await?;
        let templates = self.runtime.templates().await?;
        if self.before(Kind::Snapshots).is_some() || self.before(Kind::Templates).is_some() {
            let uses = self.uses().await?;
            for snapshot in snapshots {
                let kept = uses.kept(UsedKind::Snapshot, &snapshot.physical.to_string(), snapshot.created);
                // What a build made for itself goes with the build.
                let is_free = snapshot.state == SnapshotState::Ready && !snapshot.about.built;
                if is_free && self.is_due(Kind::Snapshots, kept) {
                    going.push((Base::Snapshot(snapshot.physical), Some(snapshot)));
                } else {
                    self.counted(Kind::Snapshots).keep(0);
                }
            }
            for (name, template) in templates {
                // A damaged one says nothing of its age.
                let made = template.ok().and_then(|template| template.made.parse::<Time>().ok());
                let due =
                    made.is_some_and(|made| self.is_due(Kind::Templates, uses.kept(UsedKind::Template, &name, made)));
                match due {
                    true => going.push((Base::Named(name), None)),
                    false => self.counted(Kind::Templates).keep(0),
                }
            }
        } else {
            self.counted(Kind::Snapshots).kept = snapshots.len() as u64;
            self.counted(Kind::Templates).kept = templates.len() as u64;
        }
        let without: Vec<Base> = going.iter().map(|(base, _)| base.clone()).collect();
        for (layer, bytes) in self.runtime.0.sandboxes.provider().unused(&without).await? {
            self.counted(Kind::Layers).add(|| layer, bytes);
        }
        for (base, snapshot) in going {
            self.go_on()?;
            match (&base, snapshot) {
                (_, Some(snapshot)) => {
                    self.counted(Kind::Snapshots).add(|| snapshot.id.to_string(), 0);
                    if !self.dry_run {
                        self.remove_snapshot(&snapshot).await?;
                    }
                }
                (Base::Named(name), None) => {
                    self.counted(Kind::Templates).add(|| name.clone(), 0);
                    if !self.dry_run {
                        self.remove_template(name).await?;
                    }
                }
                _ => {}
            }
        }
        let layers = self.counted(Kind::Layers).count;
        if !self.dry_run && layers > 0 && !self.runtime.0.sandboxes.provider().tidy().await? {
            self.runtime.0.sandboxes.went(); // somebody is making something: it is asked again
        }
        Ok(())
    }

    /// What sandboxes use now counts as used now, so that its time begins when the last of them goes.
    async fn uses(&self) -> Result<Uses> {
        let mut now: HashSet<_> = used_by(&self.runtime.settings().sandbox).into_iter().collect();
        let mut after = None;
        loop {
            let page = self.runtime.store().specs(after.take(), AT_ONCE).await?;
            let Some((last, _)) = page.last() else { break };
            after = Some(last.clone());
            for (_, spec) in &page {
                // What cannot be read uses nothing that it could ever be made from again.
                let wanted: Option<Wanted> = serde_json::from_str(spec).ok();
                now.extend(wanted.and_then(|wanted| used_by(&wanted.sandbox)));
            }
        }
        if !self.dry_run {
            for (kind, name) in &now {
                self.runtime.store().note_use(Used { kind: *kind, name: name.clone(), at: self.now }).await?;
            }
        }
        let last = self.runtime.store().uses().await?;
        Ok(Uses { now, last: last.into_iter().map(|used| ((used.kind, used.name), used.at)).collect() })
    }

    /// Its row of the ledger comes with the moment from which it is nobody's. After a kill, the next server removes it.
    async fn remove_snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        let Snapshot { tenant, id, physical, .. } = snapshot;
        let entry = self.entry(tenant, "snapshot.delete", vec![id.to_string(), "retention".to_owned()]);
        if !self.runtime.store().expire_snapshot(*id, entry).await? {
            return Ok(()); // somebody else is at it
        }
        self.runtime.0.sandboxes.provider().remove_snapshot(*physical).await?;
        self.runtime.store().forget_snapshot(tenant, *id).await?;
        self.runtime.store().forget_use(UsedKind::Snapshot, &physical.to_string()).await?;
        Ok(())
    }

    async fn remove_template(&self, name: &str) -> Result<()> {
        match self.runtime.0.sandboxes.provider().remove_template(name).await {
            Ok(()) => {}
            // Used since, or removed.
            Err(cabana_sandbox::Error::TemplateInUse(_) | cabana_sandbox::Error::NoTemplate(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let argv = vec![name.to_owned(), "retention".to_owned()];
        self.runtime.store().note(self.entry(&Tenant::default(), "template.remove", argv)).await?;
        Ok(self.runtime.store().forget_use(UsedKind::Template, name).await?)
    }
}
