//! What is over and may go. What goes is the caller's to decide: here it is found and removed, a few rows at a time, so that no
//! call waits for a day's worth of them.

use cabana_model::{SandboxId, Tenant, Time};
use rusqlite::{OptionalExtension, Row, params};
use uuid::Uuid;

use crate::{
    Result, Store,
    ledger::tenants,
    page::{self, RowSize},
    sql::{Col, get, maybe},
};

/// A call or a task. A task has the number of the call that began it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OverId {
    Call(Tenant, Uuid),
    Task(Tenant, Uuid),
}

/// What a sandbox was asked to be.
impl RowSize for (SandboxId, String) {
    fn size(&self) -> usize {
        size_of::<Self>() + self.1.len()
    }
}

impl OverId {
    pub fn tenant(&self) -> &Tenant {
        match self {
            Self::Call(tenant, _) | Self::Task(tenant, _) => tenant,
        }
    }

    pub fn uuid(&self) -> Uuid {
        match self {
            Self::Call(_, id) | Self::Task(_, id) => *id,
        }
    }
}

/// What is known of one that may be over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    pub id: OverId,
    pub begun: Time,
    pub ended: Option<Time>,
    /// Its Idempotency-Key is known: who repeats it is answered from it.
    pub keyed: bool,
    /// When the task that it began ended. `Some(None)`: that task goes on.
    pub task: Option<Option<Time>>,
    /// What its row holds of what it said.
    pub bytes: u64,
}

/// What something can be made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UsedKind {
    Template,
    Snapshot,
}

impl UsedKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Template => "template",
            Self::Snapshot => "snapshot",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    pub kind: UsedKind,
    pub name: String,
    pub at: Time,
}

const CALL: &str = "'call' AS kind, calls.tenant, calls.id, calls.reserved AS begun, calls.ended, once IS NOT NULL AS keyed, \
    tasks.id IS NOT NULL AS has_task, tasks.ended AS task_ended, \
    coalesce(length(calls.stdout) + length(calls.stderr), 0) AS bytes \
    FROM calls LEFT JOIN tasks ON tasks.tenant = calls.tenant AND tasks.id = calls.id";
const TASK: &str = "'task' AS kind, tenant, id, started AS begun, ended, false AS keyed, false AS has_task, \
    NULL AS task_ended, coalesce(length(stdout) + length(stderr), 0) AS bytes FROM tasks";

impl Store {
    /// Those that ended before then and have something that they said in their rows, the oldest first, after the one that was seen last.
    pub async fn said_before(&self, before: Time, after: Option<Over>, limit: u32) -> Result<Vec<Over>> {
        self.read(move |db| {
            // One kind after the other.
            let (of_calls, of_tasks) = match after.as_ref().map(|over| &over.id) {
                None => (Some(None), None),
                Some(OverId::Call(..)) => (Some(after.as_ref()), None),
                Some(OverId::Task(..)) => (None, Some(after.as_ref())),
            };
            let page = |what: &str, table: &str, after: Option<&Over>| {
                let sql = format!(
                    "SELECT {what} WHERE (length({table}.stdout) > 0 OR length({table}.stderr) > 0) AND {table}.ended < ?1
                     AND ({table}.ended, {table}.tenant, {table}.id) > (?2, ?3, ?4)
                     ORDER BY {table}.ended, {table}.tenant, {table}.id LIMIT ?5"
                );
                let ended = after.and_then(|over| over.ended).map_or(i64::MIN, |ended| ended.as_microsecond());
                let tenant = after.map_or("", |over| over.id.tenant().as_str());
                let id = after.map_or(Uuid::nil(), |over| over.id.uuid());
                let mut statement = db.prepare_cached(&sql)?;
                let rows = statement.query_map(params![Col(&before), ended, tenant, id.as_bytes(), limit], over)?;
                rows.collect::<rusqlite::Result<Vec<_>>>()
            };
            if let Some(after) = of_calls {
                let found = page(CALL, "calls", after)?;
                if !found.is_empty() {
                    return Ok(found);
                }
            }
            Ok(page(TASK, "tasks", of_tasks.flatten())?)
        })
        .await
    }

    /// What they said goes; the rows stay. Of a call the answer goes too, which repeats it: no key leads to it any more.
    pub async fn forget_said(&self, these: Vec<OverId>) -> Result<()> {
        self.write(move |tx| {
            for id in &these {
                let sql = match id {
                    OverId::Call(..) => {
                        "UPDATE calls SET stdout = NULL, stderr = NULL, answer = iif(outcome = 'answered', NULL, answer)
                         WHERE tenant = ? AND id = ? AND ended IS NOT NULL AND once IS NULL"
                    }
                    OverId::Task(..) => {
                        "UPDATE tasks SET stdout = NULL, stderr = NULL WHERE tenant = ? AND id = ? AND ended IS NOT NULL"
                    }
                };
                tx.execute(sql, params![Col(id.tenant()), id.uuid().as_bytes()])?;
            }
            Ok(())
        })
        .await
    }

    /// What there is of these numbers: of each a call, a task, both or nothing.
    pub async fn over_by_number(&self, numbers: Vec<Uuid>) -> Result<Vec<Over>> {
        self.read(move |db| {
            let tenants = tenants(db)?;
            let mut calls = db.prepare_cached(&format!("SELECT {CALL} WHERE calls.tenant = ? AND calls.id = ?"))?;
            let mut tasks = db.prepare_cached(&format!("SELECT {TASK} WHERE tenant = ? AND id = ?"))?;
            let mut found = Vec::new();
            for number in &numbers {
                for tenant in &tenants {
                    let key = params![Col(tenant), number.as_bytes()];
                    found.extend(calls.query_row(key, over).optional()?);
                    found.extend(tasks.query_row(key, over).optional()?);
                }
            }
            Ok(found)
        })
        .await
    }

    /// The tenant's calls or tasks in the order in which they began, after this one.
    pub async fn oldest(&self, tenant: &Tenant, tasks: bool, after: Option<Uuid>, limit: u32) -> Result<Vec<Over>> {
        let (tenant, after) = (tenant.clone(), after.unwrap_or(Uuid::nil()));
        self.read(move |db| {
            let (what, table) = if tasks { (TASK, "tasks") } else { (CALL, "calls") };
            let sql = format!("SELECT {what} WHERE {table}.tenant = ? AND {table}.id > ? ORDER BY {table}.id LIMIT ?");
            let mut statement = db.prepare_cached(&sql)?;
            let rows = statement.query_map(params![Col(&tenant), after.as_bytes(), limit], over)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    /// The rows themselves. One that is open, or that a key leads to, stays.
    pub async fn forget_over(&self, these: Vec<OverId>) -> Result<()> {
        self.write(move |tx| {
            for id in &these {
                let sql = match id {
                    OverId::Call(..) => {
                        "DELETE FROM calls WHERE tenant = ? AND id = ? AND ended IS NOT NULL AND once IS NULL"
                    }
                    OverId::Task(..) => "DELETE FROM tasks WHERE tenant = ? AND id = ? AND ended IS NOT NULL",
                };
                tx.execute(sql, params![Col(id.tenant()), id.uuid().as_bytes()])?;
            }
            Ok(())
        })
        .await
    }

    /// What sandboxes of all tenants were asked to be, after this one; an empty part is the end.
    pub async fn specs(&self, after: Option<SandboxId>, limit: u32) -> Result<Vec<(SandboxId, String)>> {
        self.read(move |db| {
            let sql = "SELECT physical, spec FROM sandboxes WHERE physical > ? ORDER BY physical LIMIT ?";
            let mut statement = db.prepare_cached(sql)?;
            let after = after.as_ref().map_or("", SandboxId::as_str);
            let rows =
                statement.query_map(params![after, limit], |row| Ok((get(row, "physical")?, row.get("spec")?)))?;
            Ok(page::collect(rows)?)
        })
        .await
    }

    /// Those of these that no sandbox has.
    pub async fn nobodys(&self, physicals: Vec<SandboxId>) -> Result<Vec<SandboxId>> {
        self.read(move |db| {
            let mut statement = db.prepare_cached("SELECT 1 FROM sandboxes WHERE physical = ?")?;
            let mut nobodys = Vec::new();
            for physical in physicals {
                if !statement.exists([Col(&physical)])? {
                    nobodys.push(physical);
                }
            }
            Ok(nobodys)
        })
        .await
    }

    /// Something is made from it just now.
    pub async fn note_use(&self, used: Used) -> Result<()> {
        self.write(move |tx| {
            let sql = "INSERT INTO uses (kind, name, at) VALUES (?1, ?2, ?3)
                       ON CONFLICT (kind, name) DO UPDATE SET at = max(at, excluded.at)";
            tx.execute(sql, params![used.kind.as_str(), used.name, Col(&used.at)]).map(drop)
        })
        .await
    }

    pub async fn uses(&self) -> Result<Vec<Used>> {
        self.read(|db| {
            let mut statement = db.prepare_cached("SELECT kind, name, at FROM uses")?;
            let rows = statement.query_map([], |row| {
                let kind = match row.get_ref("kind")?.as_str() {
                    Ok("snapshot") => UsedKind::Snapshot,
                    _ => UsedKind::Template,
                };
                Ok(Used { kind, name: row.get("name")?, at: get(row, "at")? })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    /// Of what is gone.
    pub async fn forget_use(&self, kind: UsedKind, name: &str) -> Result<()> {
        let name = name.to_owned();
        let sql = "DELETE FROM uses WHERE kind = ? AND name = ?";
        self.write(move |tx| tx.execute(sql, params![kind.as_str(), name]).map(drop)).await
    }
}

fn over(row: &Row<'_>) -> rusqlite::Result<Over> {
    let (tenant, id) = (get(row, "tenant")?, Uuid::from_bytes(row.get("id")?));
    let has_task: bool = row.get("has_task")?;
    Ok(Over {
        id: match row.get_ref("kind")?.as_str() {
            Ok("task") => OverId::Task(tenant, id),
            _ => OverId::Call(tenant, id),
        },
        begun: get(row, "begun")?,
        ended: maybe(row, "ended")?,
        keyed: row.get("keyed")?,
        task: if has_task { Some(maybe(row, "task_ended")?) } else { None },
        bytes: row.get("bytes")?,
    })
}
