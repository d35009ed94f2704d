//! What is known of the last server's leavings before anything of it is touched: what the store says.

use std::{collections::HashMap, pin::pin, sync::Arc};

use cabana_model::{CallId, SandboxId, SandboxState, SnapshotId, TaskId, Tenant};
use cabana_store::{CallRow, NewTask, Snapshot, Task, Volume};
use futures_util::TryStreamExt;

use super::{ONCE_ENDED, pending::Outstanding};
use crate::{
    Act, Result, Runtime,
    acts::{exec::Exec, sandbox::Ensure, terminal::Terminal},
    builds::BUILDING,
    quotas::Pass,
    sandboxes::{Awake, Kind, Slot},
};

#[derive(Default)]
pub(super) struct Left {
    /// Those that may run: they are attached to.
    pub(super) sandboxes: Vec<LeftSandbox>,
    /// Those that are to go.
    pub(super) doomed: Vec<Doomed>,
    /// Of sandboxes that rest or are gone.
    pub(super) tasks: Vec<LeftTask>,
    /// Those that no command tells of.
    pub(super) calls: Vec<LeftCall>,
    pub(super) snapshots: Vec<Snapshot>,
    /// Of builds, and no build refers to them.
    pub(super) loose: Vec<(Tenant, SnapshotId)>,
    pub(super) volumes: Vec<Volume>,
}

pub(super) struct LeftSandbox {
    pub(super) slot: Arc<Slot>,
    pub(super) outstanding: Outstanding<SandboxId>,
    pub(super) tasks: Vec<LeftTask>,
    /// Commands that were waited for.
    pub(super) calls: Vec<LeftCall>,
    /// It was being made or started for these.
    pub(super) ensures: Vec<LeftCall>,
}

pub(super) struct Doomed {
    pub(super) slot: Arc<Slot>,
    /// `None`: its record says so already.
    pub(super) why: Option<&'static str>,
}

pub(super) struct LeftTask {
    pub(super) task: NewTask,
    pub(super) may_run: Option<MayRun>,
    pub(super) _outstanding: Outstanding<TaskId>,
}

pub(super) struct LeftCall {
    pub(super) row: CallRow,
    pub(super) may_run: Option<MayRun>,
    pub(super) _outstanding: Outstanding<CallId>,
}

/// A command that may run counts, and keeps its sandbox awake, until it is known what became of it.
pub(super) struct MayRun {
    pub(super) pass: Pass,
    pub(super) awake: Awake,
}

type Where = (Tenant, SandboxId);

enum Fate {
    AttachedTo,
    Doomed(Option<&'static str>),
    LeftAlone,
}

impl Runtime {
    /// Reads and counts, and asks no sandbox.
    pub(super) async fn survey(&self) -> Result<Left> {
        let mut left = Left::default();
        let (mut tasks, mut commands) = (HashMap::<Where, Vec<Task>>::new(), HashMap::<Where, Vec<CallRow>>::new());
        let mut ensures = HashMap::<Where, Vec<CallRow>>::new();
        for task in self.0.store.open_tasks().await? {
            tasks.entry((task.tenant.clone(), task.sandbox.clone())).or_default().push(task);
        }
        for row in self.0.store.open_calls().await? {
            match &row.sandbox {
                Some(sandbox) if [Exec::VERB, Terminal::VERB].contains(&row.verb.as_str()) => {
                    commands.entry((row.tenant.clone(), sandbox.clone())).or_default().push(row);
                }
                Some(sandbox) if row.verb == Ensure::VERB => {
                    ensures.entry((row.tenant.clone(), sandbox.clone())).or_default().push(row);
                }
                _ => left.calls.push(self.left_call(row, None)),
            }
        }
        let mut records = pin!(self.0.store.restless_sandboxes());
        while let Some(record) = records.try_next().await? {
            let place = (record.tenant.clone(), record.id.clone());
            let slot = self.0.sandboxes.of_record(record);
            self.0.sandboxes.count_left(&slot);
            match fate(&slot, commands.contains_key(&place)) {
                Fate::LeftAlone => {}
                Fate::Doomed(why) => left.doomed.push(Doomed { slot, why }),
                Fate::AttachedTo => {
                    let ensures = ensures.remove(&place).into_iter().flatten();
                    let ensures = ensures.map(|row| self.left_call(row, Some(&slot))).collect();
                    let (tasks, calls) = (tasks.remove(&place), commands.remove(&place));
                    left.sandboxes.push(LeftSandbox { ensures, ..self.left_sandbox(slot, tasks, calls) });
                }
            }
        }
        left.tasks = tasks.into_values().flatten().map(|task| self.left_task(task, None)).collect();
        let others = commands.into_values().chain(ensures.into_values()).flatten();
        left.calls.extend(others.map(|row| self.left_call(row, None)));
        left.snapshots = self.0.store.all_snapshots().await?;
        left.loose = self.0.store.loose_snapshots().await?;
        left.volumes = self.0.store.all_volumes().await?;
        Ok(left)
    }

    fn left_sandbox(&self, slot: Arc<Slot>, tasks: Option<Vec<Task>>, calls: Option<Vec<CallRow>>) -> LeftSandbox {
        let tasks = tasks.into_iter().flatten().map(|task| self.left_task(task, Some(&slot))).collect();
        let calls = calls.into_iter().flatten().map(|row| self.left_call(row, Some(&slot))).collect();
        let outstanding = self.0.sandboxes.left.add(slot.record().physical.clone());
        LeftSandbox { outstanding, slot, tasks, calls, ensures: Vec::new() }
    }

    fn left_task(&self, row: Task, slot: Option<&Arc<Slot>>) -> LeftTask {
        let Task { id, tenant, call, key, sandbox, argv, about, started, .. } = row;
        LeftTask {
            may_run: slot
                .map(|slot| MayRun { pass: self.0.quotas.left_task(&tenant, key), awake: slot.awake(Kind::Task) }),
            _outstanding: self.0.left_tasks.add(id),
            task: NewTask { id, tenant, call, key, sandbox, argv, about, at: started },
        }
    }

    fn left_call(&self, row: CallRow, slot: Option<&Arc<Slot>>) -> LeftCall {
        LeftCall {
            may_run: slot.map(|slot| MayRun {
                pass: self.0.quotas.left_call(&row.tenant, row.key),
                awake: slot.awake(Kind::Call),
            }),
            _outstanding: self.0.left_calls.add(row.id),
            row,
        }
    }
}

fn fate(slot: &Slot, has_commands: bool) -> Fate {
    match (slot.record().state, slot.wanted()) {
        (SandboxState::Deleting, _) => Fate::Doomed(None),
        (SandboxState::Failed | SandboxState::Archived | SandboxState::Stopped, _) => Fate::LeftAlone,
        // No build goes on that was interrupted.
        (_, Ok(wanted)) if wanted.notes.contains_key(BUILDING) => Fate::Doomed(Some("its build is over")),
        // One that was made for one call ends with it, whichever server sees the end.
        (_, Ok(wanted)) if wanted.once && !has_commands => Fate::Doomed(Some(ONCE_ENDED)),
        _ => Fate::AttachedTo,
    }
}
