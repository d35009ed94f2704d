//! What a command said: while it runs, and after.

use std::sync::Arc;

use cabana_model::{CallId, Outcome, TaskId, TaskState, Tenant};
use cabana_store::{CallRow, Inline, Log, Stream};
use uuid::Uuid;

use crate::{
    Act, Caller, Error, Result, Runtime,
    acts::{exec::Exec, terminal::Terminal},
    shares::{self, READERS},
};

impl Runtime {
    /// To be read by range and followed by any number of readers. Ended or not makes no difference to them.
    pub async fn call_output(&self, caller: &Caller, id: CallId) -> Result<Arc<Log>> {
        self.0.left_calls.taken_up(&id).await?;
        // First: of one that ends between the two looks, the row has the output then.
        let live = self.0.calls.get(id);
        let row = self.call_row(caller, id).await?;
        match live {
            Some(call) => Ok(call.output),
            None => {
                let told = matches!(row.outcome, Some(Outcome::Answered(_)));
                let told = told && [Exec::VERB, Terminal::VERB].contains(&row.verb.as_str());
                self.again(&caller.tenant, id.uuid(), row.inline, told).await
            }
        }
    }

    pub(crate) async fn ended_output(&self, row: &CallRow) -> Result<Arc<Log>> {
        self.again(&row.tenant, row.id.uuid(), row.inline.clone(), false).await
    }

    pub async fn task_output(&self, caller: &Caller, id: TaskId) -> Result<Arc<Log>> {
        self.0.left_tasks.taken_up(&id).await?;
        let live = self.0.live_tasks.get(id); // first, for the same reason
        let task = self.task(caller, id).await?;
        match live {
            Some(live) => Ok(live.log),
            None => {
                let told = !matches!(task.state, TaskState::Running | TaskState::Unknown);
                self.again(&caller.tenant, id.uuid(), task.inline, told).await
            }
        }
    }

    /// What is in files of it.
    pub(crate) async fn left_output(&self, id: Uuid) -> Result<Arc<Log>> {
        let (store, cap) = (self.0.store.clone(), self.0.settings.output_cap);
        // All of it is read, for its digest.
        let left = tokio::task::spawn_blocking(move || store.outputs().resume(id, cap)).await;
        let left = left.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        left.map_err(|error| cabana_store::Error::Unavailable(error.to_string()).into())
    }

    /// A small output is in its row; a large one is in files. Of what was told to its end, an output that is in neither is gone;
    /// a crash may have left none.
    async fn again(&self, tenant: &Tenant, id: Uuid, inline: Option<Inline>, told: bool) -> Result<Arc<Log>> {
        let outputs = self.0.store.outputs();
        if inline.is_none() {
            let share = READERS.take(&shares::tenant(tenant)).ok_or(Error::TooManyReaders)?;
            match outputs.ended(id, share).await? {
                Some(log) => return Ok(log),
                None if told => return Err(Error::OutputGone),
                None => {}
            }
        }
        let Inline { stdout, stderr } = inline.unwrap_or_default();
        let log = outputs.begin(id, u64::MAX);
        log.push(Stream::Stdout, stdout).await?;
        log.push(Stream::Stderr, stderr).await?;
        log.end();
        Ok(log)
    }
}
