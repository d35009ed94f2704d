//! The records of sandboxes. A record is claimed before its sandbox is made, so none exists that nobody knows of.

use cabana_model::{SandboxId, SandboxState, Scope, Tenant, Time, event_id};
use rusqlite::{Connection, OptionalExtension, Params, Row, params};
use uuid::Uuid;

use crate::{
    Error, Page, Result, Store,
    desk::Tx,
    sql::{Col, get, maybe},
};

/// Wanted: the sandbox of this scope, or one without a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub tenant: Tenant,
    pub scope: Option<Scope>,
    /// The public id, if it has to be made.
    pub id: SandboxId,
    pub physical: SandboxId,
    /// JSON; the store does not look into it.
    pub spec: String,
    pub at: Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The scope has one, in whatever state.
    There(Record),
    Made(Record),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub tenant: Tenant,
    pub id: SandboxId,
    pub physical: SandboxId,
    pub scope: Option<Scope>,
    pub spec: String,
    pub state: SandboxState,
    /// Why it is in this state.
    pub why: String,
    pub created: Time,
    pub changed: Time,
    pub active: Time,
    pub version: u64,
}

impl Record {
    /// Of the event that tells how it became what it is.
    pub fn event_id(&self) -> Uuid {
        event_id(self.changed, self.physical.as_str(), self.version)
    }

    /// Where a list goes on after it. The physical id stays inside.
    pub fn cursor(&self) -> String {
        format!("{}-{}", self.created.as_microsecond(), self.id)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    pub physical: SandboxId,
    /// The version of the record that the decision was made on.
    pub version: u64,
    pub to: SandboxState,
    pub why: String,
    pub at: Time,
}

impl Store {
    /// Looking and making are one transaction: of any number of callers, one makes it.
    pub async fn claim(&self, claim: Claim) -> Result<Claimed> {
        self.write(move |tx| {
            if let Some(scope) = &claim.scope
                && let Some(record) = of_scope(tx.reads(), &claim.tenant, scope)?
            {
                return Ok(Claimed::There(record));
            }
            insert(tx, &claim)?;
            let made = one(tx.reads(), "physical = ?", [Col(&claim.physical)])?;
            let made = made.ok_or_else(|| Error::Corrupt("a record that was just written is not there".into()))?;
            tx.tell_change(&made)?;
            Ok(Claimed::Made(made))
        })
        .await
    }

    pub async fn sandbox(&self, tenant: &Tenant, id: &SandboxId) -> Result<Option<Record>> {
        let (tenant, id) = (tenant.clone(), id.clone());
        self.read(move |db| Ok(one(db, "tenant = ? AND id = ?", params![Col(&tenant), Col(&id)])?)).await
    }

    pub async fn by_scope(&self, tenant: &Tenant, scope: &Scope) -> Result<Option<Record>> {
        let (tenant, scope) = (tenant.clone(), scope.clone());
        self.read(move |db| Ok(of_scope(db, &tenant, &scope)?)).await
    }

    /// The newest one of this chat, whoever its user is.
    pub async fn by_chat(&self, tenant: &Tenant, app: &str, chat: &str) -> Result<Option<Record>> {
        let (tenant, app, chat) = (tenant.clone(), app.to_owned(), chat.to_owned());
        self.read(move |db| {
            let which = "tenant = ? AND app = ? AND chat = ? ORDER BY created DESC, id DESC LIMIT 1";
            Ok(one(db, which, params![Col(&tenant), app, chat])?)
        })
        .await
    }

    /// Newest first.
    pub async fn sandboxes(&self, tenant: &Tenant, state: Option<SandboxState>, page: Page) -> Result<Vec<Record>> {
        let (created, id) = match &page.after {
            Some(cursor) => after(cursor)?,
            None => (i64::MAX, String::new()),
        };
        let tenant = tenant.clone();
        self.read(move |db| {
            let which = "tenant = ?1 AND (created, id) < (?2, ?3) AND (?4 IS NULL OR state = ?4)
                         ORDER BY created DESC, id DESC LIMIT ?5";
            Ok(all(db, which, params![Col(&tenant), created, id, state.as_ref().map(Col), page.rows()])?)
        })
        .await
    }

    /// Of all tenants.
    pub async fn all_sandboxes(&self) -> Result<Vec<Record>> {
        self.read(|db| Ok(all(db, "true", [])?)).await
    }

    /// `None`: it has another version by now, or is in a state that does not lead there.
    pub async fn transition(&self, t: Transition) -> Result<Option<Record>> {
        self.write(move |tx| {
            let Some(record) = at_version(tx.reads(), &t.physical, t.version)? else { return Ok(None) };
            if !record.state.may_become(t.to) {
                return Ok(None);
            }
            tx.execute(
                "UPDATE sandboxes SET state = ?, why = ?, changed = ?, version = version + 1 WHERE physical = ?",
                params![Col(&t.to), t.why, Col(&t.at), Col(&t.physical)],
            )?;
            let record = one(tx.reads(), "physical = ?", [Col(&t.physical)])?;
            record.iter().try_for_each(|record| tx.tell_change(record))?;
            Ok(record)
        })
        .await
    }

    /// That it was used just now.
    pub async fn touch(&self, physical: &SandboxId, at: Time) -> Result<()> {
        let physical = physical.clone();
        self.write(move |tx| {
            let sql = "UPDATE sandboxes SET active = max(active, ?) WHERE physical = ?";
            tx.execute(sql, params![Col(&at), Col(&physical)]).map(drop)
        })
        .await
    }

    /// `None`: it has another version by now.
    pub async fn change_spec(&self, physical: &SandboxId, version: u64, spec: String) -> Result<Option<Record>> {
        let physical = physical.clone();
        self.write(move |tx| {
            if at_version(tx.reads(), &physical, version)?.is_none() {
                return Ok(None);
            }
            let sql = "UPDATE sandboxes SET spec = ?, version = version + 1 WHERE physical = ?";
            tx.execute(sql, params![spec, Col(&physical)])?;
            Ok(one(tx.reads(), "physical = ?", [Col(&physical)])?)
        })
        .await
    }

    /// The record of a sandbox that is gone.
    pub async fn remove(&self, physical: &SandboxId) -> Result<()> {
        let physical = physical.clone();
        self.write(move |tx| {
            tx.execute("DELETE FROM sandboxes WHERE physical = ?", params![Col(&physical)])?;
            crate::secrets::forget_mark(tx, &physical)
        })
        .await
    }
}

fn insert(tx: &mut Tx<'_>, claim: &Claim) -> Result<usize> {
    let scope = claim.scope.as_ref();
    let chat = scope.and_then(Scope::chat);
    tx.execute(
        "INSERT INTO sandboxes
           (physical, tenant, id, scheme, value, app, chat, scope, spec, state, why, created, changed, active, version)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 'claimed', ?11, ?11, ?11, 1)",
        params![
            Col(&claim.physical),
            Col(&claim.tenant),
            Col(&claim.id),
            scope.map(|scope| scope.scheme().as_str()),
            scope.map(Scope::value),
            chat.map(|(app, _)| app),
            chat.map(|(_, chat)| chat),
            scope.map(Col),
            claim.spec,
            Col(&SandboxState::Provisioning),
            Col(&claim.at),
        ],
    )
}

fn of_scope(db: &Connection, tenant: &Tenant, scope: &Scope) -> rusqlite::Result<Option<Record>> {
    let which = "tenant = ? AND scheme = ? AND value = ?";
    one(db, which, params![Col(tenant), scope.scheme().as_str(), scope.value()])
}

fn at_version(db: &Connection, physical: &SandboxId, version: u64) -> rusqlite::Result<Option<Record>> {
    one(db, "physical = ? AND version = ?", params![Col(physical), i64::try_from(version).unwrap_or(-1)])
}

fn one(db: &Connection, which: &str, values: impl Params) -> rusqlite::Result<Option<Record>> {
    db.prepare_cached(&format!("SELECT * FROM sandboxes WHERE {which}"))?.query_row(values, row).optional()
}

fn all(db: &Connection, which: &str, values: impl Params) -> rusqlite::Result<Vec<Record>> {
    db.prepare_cached(&format!("SELECT * FROM sandboxes WHERE {which}"))?.query_map(values, row)?.collect()
}

fn row(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record {
        tenant: get(row, "tenant")?,
        id: get(row, "id")?,
        physical: get(row, "physical")?,
        scope: maybe(row, "scope")?,
        spec: row.get("spec")?,
        state: get(row, "state")?,
        why: row.get("why")?,
        created: get(row, "created")?,
        changed: get(row, "changed")?,
        active: get(row, "active")?,
        version: row.get("version")?,
    })
}

fn after(cursor: &str) -> Result<(i64, String)> {
    let (created, id) = cursor.rsplit_once('-').ok_or(Error::Cursor)?;
    let id = SandboxId::new(id).map_err(|_| Error::Cursor)?;
    Ok((created.parse().map_err(|_| Error::Cursor)?, id.into()))
}
