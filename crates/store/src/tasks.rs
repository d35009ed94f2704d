//! Tasks: commands in the background. How one ended is said once.

use cabana_model::{CallId, KeyId, SandboxId, TaskId, TaskState, Tenant, Time, event_id};
use rusqlite::{OptionalExtension, Row, params};
use uuid::Uuid;

use crate::{
    Entry, Error, Inline, Page, Result, Store,
    calls::inline,
    page::{self, RowSize},
    sql::{Col, get, maybe, readable},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTask {
    pub id: TaskId,
    pub tenant: Tenant,
    pub call: CallId,
    pub key: KeyId,
    pub sandbox: SandboxId,
    pub argv: Vec<String>,
    /// JSON; the store does not look into it.
    pub about: Option<String>,
    pub at: Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskEnd {
    pub id: TaskId,
    pub state: TaskState,
    /// JSON; the store does not look into it.
    pub exit: Option<String>,
    pub inline: Option<Inline>,
    pub at: Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    pub id: TaskId,
    pub tenant: Tenant,
    pub call: CallId,
    pub key: KeyId,
    pub sandbox: SandboxId,
    /// Whose it is, if it is one user's.
    pub user: Option<String>,
    pub argv: Vec<String>,
    pub about: Option<String>,
    pub state: TaskState,
    pub exit: Option<String>,
    pub inline: Option<Inline>,
    pub started: Time,
    pub ended: Option<Time>,
}

impl TaskEnd {
    /// Of the event that tells of it.
    pub fn event_id(&self) -> Uuid {
        event_id(self.at, &self.id.to_string(), 0)
    }
}

impl RowSize for Task {
    fn size(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let inline = self.inline.as_ref().map_or(0, |inline| inline.stdout.len() + inline.stderr.len());
        size_of::<Self>() + page::size_of_words(&self.argv) + text(&self.about) + text(&self.exit) + inline
    }
}

impl Task {
    /// Where a list goes on after it.
    pub fn cursor(&self) -> String {
        self.id.to_string()
    }
}

impl Store {
    pub async fn add_task(&self, task: NewTask) -> Result<()> {
        let tenant = task.tenant.clone();
        self.write_for(&tenant, move |tx| {
            tx.execute(
                "INSERT INTO tasks (tenant, id, call, key, sandbox, argv, about, state, started, user)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, (SELECT user FROM sandboxes WHERE tenant = ?1 AND id = ?5))",
                params![
                    Col(&task.tenant),
                    Col(&task.id),
                    Col(&task.call),
                    Col(&task.key),
                    Col(&task.sandbox),
                    Col(&task.argv),
                    task.about,
                    Col(&TaskState::Running),
                    Col(&task.at),
                ],
            )?;
            Ok(())
        })
        .await
    }

    /// With its ledger row, both or neither. `false`: it had ended before, and nothing is written.
    pub async fn end_task(&self, end: TaskEnd, entry: Entry) -> Result<bool> {
        let tenant = entry.tenant.clone();
        self.write_for(&tenant, move |tx| {
            let inline = end.inline.as_ref();
            let ended = tx.execute(
                "UPDATE tasks SET state = ?, exit = ?, stdout = ?, stderr = ?, ended = ?
                 WHERE tenant = ? AND id = ? AND ended IS NULL",
                params![
                    Col(&end.state),
                    end.exit,
                    inline.map(|inline| &inline.stdout[..]),
                    inline.map(|inline| &inline.stderr[..]),
                    Col(&end.at),
                    Col(&entry.tenant),
                    Col(&end.id),
                ],
            )?;
            if ended == 0 {
                let known = tx
                    .reads()
                    .prepare_cached("SELECT 1 FROM tasks WHERE tenant = ? AND id = ?")?
                    .exists(params![Col(&entry.tenant), Col(&end.id)])?;
                return if known { Ok(false) } else { Err(Error::Refused(format!("there is no {}", end.id))) };
            }
            if let Some(sandbox) = &entry.sandbox {
                tx.tell_end(&entry.tenant, sandbox, &end)?;
            }
            tx.append(entry)?;
            Ok(true)
        })
        .await
    }

    pub async fn task(&self, tenant: &Tenant, id: TaskId) -> Result<Option<Task>> {
        let of = tenant.clone();
        self.glance_for(tenant, move |db| {
            let sql = "SELECT * FROM tasks WHERE tenant = ? AND id = ?";
            Ok(db.prepare_cached(sql)?.query_row(params![Col(&of), Col(&id)], row).optional()?)
        })
        .await
    }

    /// Newest first. `user`: without those of other users.
    pub async fn tasks(
        &self,
        tenant: &Tenant,
        user: Option<&str>,
        sandbox: Option<&SandboxId>,
        state: Option<TaskState>,
        page: Page,
    ) -> Result<Vec<Task>> {
        let (user, sandbox) = (user.map(str::to_owned), sandbox.cloned());
        let before = match &page.after {
            Some(cursor) => Some(cursor.parse::<TaskId>().map_err(|_| Error::Cursor)?),
            None => None,
        };
        self.read_for(tenant, move |db, tenant| {
            // Two texts, so that each finds its own index.
            let of = if sandbox.is_some() { "sandbox = ?2" } else { "?2 IS NULL" };
            let mut statement = db.prepare_cached(&format!(
                "SELECT * FROM tasks WHERE tenant = ?1 AND {of} AND id < coalesce(?3, x'ffffffffffffffffffffffffffffffffff')
                 AND (?4 IS NULL OR state = ?4) AND (?6 IS NULL OR user IS NULL OR user = ?6) ORDER BY id DESC LIMIT ?5"
            ))?;
            let (of, state) = (sandbox.as_ref().map(Col), state.as_ref().map(Col));
            let values = params![Col(tenant), of, before.as_ref().map(Col), state, page.rows(), user];
            Ok(page::collect(statement.query_map(values, row)?)?)
        })
        .await
    }

    /// What has not ended, of all tenants, as far as it can be read.
    pub async fn open_tasks(&self) -> Result<Vec<Task>> {
        self.read(|db| {
            let mut statement = db.prepare_cached("SELECT * FROM tasks WHERE ended IS NULL")?;
            let rows = statement.query_map([], row)?;
            Ok(readable(rows).collect::<rusqlite::Result<_>>()?)
        })
        .await
    }
}

fn row(row: &Row<'_>) -> rusqlite::Result<Task> {
    Ok(Task {
        id: get(row, "id")?,
        tenant: get(row, "tenant")?,
        call: get(row, "call")?,
        key: get(row, "key")?,
        sandbox: get(row, "sandbox")?,
        user: row.get("user")?,
        argv: get(row, "argv")?,
        about: row.get("about")?,
        state: get(row, "state")?,
        exit: row.get("exit")?,
        inline: inline(row)?,
        started: get(row, "started")?,
        ended: maybe(row, "ended")?,
    })
}
