//! What was said, asked and recorded.

use std::collections::{HashMap, HashSet};

use cabana_model::{
    SandboxId, Time,
    retention::{Kept, Kind},
};
use cabana_store::{Outputs, Over, OverId, Stored, ledger::DROP};
use uuid::Uuid;

use super::Pass;
use crate::Result;

/// How many are looked at at once.
const AT_ONCE: u32 = 200;

impl Pass<'_> {
    /// Those in rows, and then those in files.
    pub(super) async fn outputs(&mut self) -> Result<()> {
        let before = self.before(Kind::Outputs);
        if let Some(before) = before {
            self.small_outputs(before).await?;
        }
        for folder in Outputs::folders() {
            self.go_on()?;
            let stored = self.runtime.store().outputs().stored(folder).await?;
            let (old, young): (Vec<_>, Vec<_>) =
                stored.into_iter().partition(|stored| before.is_some_and(|before| stored.written < before));
            young.iter().for_each(|stored| self.counted(Kind::Outputs).keep(stored.bytes));
            for some in old.chunks(AT_ONCE as usize) {
                self.large_outputs(some).await?;
            }
        }
        Ok(())
    }

    async fn small_outputs(&mut self, before: Time) -> Result<()> {
        let mut after = None;
        loop {
            self.go_on()?;
            let page = self.runtime.store().said_before(before, after.take(), AT_ONCE).await?;
            let Some(last) = page.last().cloned() else { return Ok(()) };
            let due: Vec<Over> = page.into_iter().filter(|over| self.has_due_output(over)).collect();
            for over in &due {
                self.counted(Kind::Outputs).add(|| name(&over.id), over.bytes);
            }
            if !self.dry_run {
                self.runtime.store().forget_said(due.into_iter().map(|over| over.id).collect()).await?;
            }
            after = Some(last);
        }
    }

    /// Who repeats a call is answered with what it said.
    fn has_due_output(&self, over: &Over) -> bool {
        self.is_due(Kind::Outputs, Kept { over: over.ended, needed: over.keyed })
    }

    /// Files that were written long ago: whose they are says when they go. Nobody's are left by something else, and go.
    async fn large_outputs(&mut self, old: &[Stored]) -> Result<()> {
        let store = self.runtime.store();
        let mut owners = HashMap::<Uuid, Vec<Over>>::new();
        for over in store.over_by_number(old.iter().map(|stored| stored.id).collect()).await? {
            owners.entry(over.id.uuid()).or_default().push(over);
        }
        let mut rows = Vec::new();
        for stored in old {
            let of_it = owners.remove(&stored.id).unwrap_or_default();
            if !of_it.iter().all(|over| self.has_due_output(over)) {
                self.counted(Kind::Outputs).keep(stored.bytes);
                continue;
            }
            let shown = of_it.last().map_or_else(|| format!("nobody's {}", stored.id.simple()), |over| name(&over.id));
            self.counted(Kind::Outputs).add(|| shown, stored.bytes);
            if !self.dry_run {
                store.outputs().remove(stored.id).await?;
                rows.extend(of_it.into_iter().map(|over| over.id));
            }
        }
        if !rows.is_empty() {
            store.forget_said(rows).await?;
        }
        Ok(())
    }

    /// Ended calls and tasks. What they said is gone by now, since it is kept no longer than they are.
    pub(super) async fn calls(&mut self) -> Result<()> {
        let Some(before) = self.before(Kind::Calls) else { return Ok(()) };
        for tenant in self.runtime.store().tenants().await? {
            for tasks in [true, false] {
                let mut after = None;
                loop {
                    self.go_on()?;
                    let page = self.runtime.store().oldest(&tenant, tasks, after, AT_ONCE).await?;
                    let Some(last) = page.last().map(|over| (over.id.uuid(), over.begun)) else { break };
                    let due: Vec<OverId> =
                        page.into_iter().filter(|over| self.is_due_call(before, over)).map(|over| over.id).collect();
                    due.iter().for_each(|id| self.counted(Kind::Calls).add(|| name(id), 0));
                    if !self.dry_run && !due.is_empty() {
                        self.runtime.store().forget_over(due).await?;
                    }
                    if last.1 >= before {
                        break; // whatever began later ended later
                    }
                    after = Some(last.0);
                }
            }
        }
        Ok(())
    }

    /// A call stays as long as its task does.
    fn is_due_call(&self, before: Time, over: &Over) -> bool {
        let task_stays = over.task.is_some_and(|ended| ended.is_none_or(|ended| ended >= before));
        self.is_due(Kind::Calls, Kept { over: over.ended, needed: over.keyed || task_stays })
    }

    /// Archives that a sudden end left behind: the record of a sandbox goes last.
    pub(super) async fn blobs(&mut self) -> Result<()> {
        let (store, all) = (self.runtime.store(), self.runtime.store().blobs().all().await?);
        let nobodys = store.nobodys(all.iter().map(|(id, _)| id.clone()).collect()).await?;
        let nobodys: HashSet<SandboxId> = nobodys.into_iter().collect();
        for (id, bytes) in all {
            self.go_on()?;
            if !nobodys.contains(&id) {
                self.counted(Kind::Blobs).keep(bytes);
                continue;
            }
            self.counted(Kind::Blobs).add(|| id.to_string(), bytes);
            if !self.dry_run {
                store.blobs().remove(&id).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn ledgers(&mut self) -> Result<()> {
        let (store, before) = (self.runtime.store(), self.before(Kind::Ledger));
        for tenant in store.tenants().await? {
            self.go_on()?;
            let older = match before {
                Some(before) => store.ledger_before(&tenant, before).await?,
                None => None,
            };
            if let Some(older) = older {
                let counted = self.counted(Kind::Ledger);
                counted.count += older.rows();
                counted.bytes += older.bytes;
                counted.examples.push(format!("{tenant} {} to {}", older.first, older.upto.seq));
                counted.examples.truncate(super::EXAMPLES);
                if !self.dry_run {
                    let entry = self.entry(&tenant, DROP, older.argv());
                    store.drop_ledger(older, entry).await?;
                }
            }
            if !self.dry_run {
                store.sweep_ledger(&tenant).await?;
            }
        }
        Ok(())
    }
}

fn name(id: &OverId) -> String {
    match id {
        OverId::Call(_, number) => cabana_model::CallId::from(*number).to_string(),
        OverId::Task(_, number) => cabana_model::TaskId::from(*number).to_string(),
    }
}
