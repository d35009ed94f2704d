//! What a command said: while it runs, and after.

use std::sync::Arc;

use cabana_model::{CallId, TaskId, Tenant};
use cabana_store::{CallRow, Inline, Log, Stream};
use uuid::Uuid;

use crate::{Error, Result, Runtime};

impl Runtime {
    /// To be read by range and followed by any number of readers. Ended or not makes no difference to them.
    pub async fn call_output(&self, tenant: &Tenant, id: CallId) -> Result<Arc<Log>> {
        let row = self.0.store.call(tenant, id).await?.ok_or(Error::NoCall(id))?;
        match self.0.calls.get(id) {
            Some(call) => Ok(call.output),
            None => self.ended_output(&row).await,
        }
    }

    pub(crate) async fn ended_output(&self, row: &CallRow) -> Result<Arc<Log>> {
        self.again(row.id.uuid(), row.inline.clone()).await
    }

    pub async fn task_output(&self, tenant: &Tenant, id: TaskId) -> Result<Arc<Log>> {
        let task = self.task(tenant, id).await?;
        match self.0.live_tasks.get(id) {
            Some(live) => Ok(live.log),
            None => self.again(id.uuid(), task.inline).await,
        }
    }

    /// What is in files of it.
    pub(crate) fn left_output(&self, id: Uuid) -> Result<Arc<Log>> {
        let left = self.0.store.outputs().resume(id, self.0.settings.output_cap);
        left.map_err(|error| cabana_store::Error::Unavailable(error.to_string()).into())
    }

    /// A small output is in its row; a large one is in files; none at all is in neither.
    async fn again(&self, id: Uuid, inline: Option<Inline>) -> Result<Arc<Log>> {
        let outputs = self.0.store.outputs();
        if inline.is_none()
            && let Some(log) = outputs.ended(id).await?
        {
            return Ok(log);
        }
        let Inline { stdout, stderr } = inline.unwrap_or_default();
        let log = outputs.begin(id, u64::MAX);
        log.push(Stream::Stdout, stdout).await?;
        log.push(Stream::Stderr, stderr).await?;
        log.end();
        Ok(log)
    }
}
