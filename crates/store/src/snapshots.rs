//! The records of snapshots. One is claimed before the snapshot is taken, so none exists that nobody knows of; it is there
//! for others from the transaction on that records the end of its call.

use cabana_model::{SandboxId, SnapshotId, SnapshotState, Tenant, Time};
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use crate::{
    Done, Entry, Error, Page, Result, Store,
    calls::end,
    desk::Tx,
    sql::{Col, get},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSnapshot {
    pub tenant: Tenant,
    /// The public id.
    pub id: SnapshotId,
    pub physical: SnapshotId,
    /// The public id of the sandbox that it is taken of.
    pub sandbox: SandboxId,
    pub about: AboutSnapshot,
    pub at: Time,
}

/// What is said of a snapshot when it is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AboutSnapshot {
    /// What it is called. Several may have one name: the newest is meant.
    pub name: Option<String>,
    /// What its front keeps of it: JSON. It may be long, so none is in lists.
    pub note: Option<String>,
    /// Whether a build made it for itself: then it is in no list, and goes with the last build that needs it.
    pub built: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub tenant: Tenant,
    pub id: SnapshotId,
    pub physical: SnapshotId,
    pub sandbox: SandboxId,
    /// Whose it is, if it is one user's.
    pub user: Option<String>,
    pub state: SnapshotState,
    pub about: AboutSnapshot,
    pub created: Time,
}

impl Snapshot {
    /// Where a list goes on after it.
    pub fn cursor(&self) -> String {
        self.id.to_string()
    }
}

/// What the end of a call means for a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotStep {
    Ready(SnapshotId),
    Gone(SnapshotId),
}

impl Store {
    pub async fn claim_snapshot(&self, new: NewSnapshot) -> Result<()> {
        let tenant = new.tenant.clone();
        self.write_for(&tenant, move |tx| {
            tx.execute(
                "INSERT INTO snapshots (tenant, id, physical, sandbox, state, created, name, about, built, stored, user)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9,
                   coalesce((SELECT stored FROM sandboxes WHERE tenant = ?1 AND id = ?4), 0),
                   (SELECT user FROM sandboxes WHERE tenant = ?1 AND id = ?4))",
                params![
                    Col(&new.tenant),
                    Col(&new.id),
                    Col(&new.physical),
                    Col(&new.sandbox),
                    Col(&SnapshotState::Making),
                    Col(&new.at),
                    new.about.name,
                    new.about.note,
                    new.about.built,
                ],
            )
            .map(drop)
        })
        .await
    }

    /// As [`Store::record`], with what it means for a snapshot of the same tenant: all of it or nothing.
    pub async fn record_snapshot(&self, done: Done, step: SnapshotStep) -> Result<()> {
        let tenant = done.entry.tenant.clone();
        self.write_for(&tenant, move |tx| {
            end(tx, &done)?;
            take(tx, &done.entry.tenant, step)?;
            tx.append(done.entry)
        })
        .await
    }

    /// One that is ready.
    pub async fn snapshot(&self, tenant: &Tenant, id: SnapshotId) -> Result<Option<Snapshot>> {
        let found = self.any_snapshot(tenant, id).await?;
        Ok(found.filter(|found| found.state == SnapshotState::Ready))
    }

    /// In whatever state.
    pub async fn any_snapshot(&self, tenant: &Tenant, id: SnapshotId) -> Result<Option<Snapshot>> {
        let of = tenant.clone();
        self.glance_for(tenant, move |db| Ok(one(db, &of, id)?)).await
    }

    /// The newest of those that are ready and of this name. `user`: without those of other users.
    pub async fn snapshot_named(&self, tenant: &Tenant, user: Option<&str>, name: &str) -> Result<Option<Snapshot>> {
        let (of, user, name) = (tenant.clone(), user.map(str::to_owned), name.to_owned());
        self.glance_for(tenant, move |db| {
            let sql = "SELECT * FROM snapshots WHERE tenant = ?1 AND name = ?2 AND state = ?3
                       AND (?4 IS NULL OR user IS NULL OR user = ?4) ORDER BY id DESC LIMIT 1";
            let values = params![Col(&of), name, Col(&SnapshotState::Ready), user];
            Ok(db.prepare_cached(sql)?.query_row(values, row).optional()?)
        })
        .await
    }

    /// Those that are ready and of this name, newest first. `user`: without those of other users.
    pub async fn snapshots_named(&self, tenant: &Tenant, user: Option<&str>, name: &str) -> Result<Vec<Snapshot>> {
        let (user, name) = (user.map(str::to_owned), name.to_owned());
        self.read_for(tenant, move |db, tenant| {
            let which = "tenant = ?1 AND name = ?2 AND state = ?3 AND (?4 IS NULL OR user IS NULL OR user = ?4)
                         ORDER BY id DESC";
            Ok(all(db, which, params![Col(tenant), name, Col(&SnapshotState::Ready), user])?)
        })
        .await
    }

    /// Those that are ready, newest first, but for what builds made for themselves. `user`: without those of other users.
    pub async fn snapshots(
        &self,
        tenant: &Tenant,
        user: Option<&str>,
        sandbox: Option<&SandboxId>,
        page: Page,
    ) -> Result<Vec<Snapshot>> {
        let (user, sandbox) = (user.map(str::to_owned), sandbox.cloned());
        let before = match &page.after {
            Some(cursor) => Some(cursor.parse::<SnapshotId>().map_err(|_| Error::Cursor)?),
            None => None,
        };
        self.read_for(tenant, move |db, tenant| {
            // Two texts, so that each finds its own index.
            let of = if sandbox.is_some() { "sandbox = ?2" } else { "?2 IS NULL" };
            let which = format!(
                "tenant = ?1 AND {of} AND id < coalesce(?3, x'ffffffffffffffffffffffffffffffffff') AND state = ?4
                 AND built = 0 AND (?6 IS NULL OR user IS NULL OR user = ?6) ORDER BY id DESC LIMIT ?5"
            );
            let (of, before) = (sandbox.as_ref().map(Col), before.as_ref().map(Col));
            let state = Col(&SnapshotState::Ready);
            Ok(all(db, &which, params![Col(tenant), of, before, state, page.rows(), user])?)
        })
        .await
    }

    /// Of all tenants, in whatever state.
    pub async fn all_snapshots(&self) -> Result<Vec<Snapshot>> {
        self.read(|db| Ok(all(db, "true", [])?)).await
    }

    /// From here on it is nobody's, whatever comes. `None`: there is none that is ready, or on its way out.
    pub async fn begin_snapshot_delete(&self, tenant: &Tenant, id: SnapshotId) -> Result<Option<Snapshot>> {
        let tenant = tenant.clone();
        self.write(move |tx| {
            let sql = "UPDATE snapshots SET state = ? WHERE tenant = ? AND id = ? AND state = ?";
            let (from, to) = (SnapshotState::Ready, SnapshotState::Deleting);
            tx.execute(sql, params![Col(&to), Col(&tenant), Col(&id), Col(&from)])?;
            Ok(one(tx.reads(), &tenant, id)?.filter(|found| found.state == SnapshotState::Deleting))
        })
        .await
    }

    /// As above, for one that was kept long enough: with its row of the ledger, both or neither. False: there is none that is
    /// ready.
    pub async fn expire_snapshot(&self, id: SnapshotId, entry: Entry) -> Result<bool> {
        self.write(move |tx| {
            let sql = "UPDATE snapshots SET state = ? WHERE tenant = ? AND id = ? AND state = ?";
            let (from, to) = (SnapshotState::Ready, SnapshotState::Deleting);
            if tx.execute(sql, params![Col(&to), Col(&entry.tenant), Col(&id), Col(&from)])? == 0 {
                return Ok(false);
            }
            tx.append(entry)?;
            Ok(true)
        })
        .await
    }

    /// The record of a snapshot that is gone.
    pub async fn forget_snapshot(&self, tenant: &Tenant, id: SnapshotId) -> Result<()> {
        let tenant = tenant.clone();
        self.write(move |tx| take(tx, &tenant, SnapshotStep::Gone(id))).await
    }
}

fn take(tx: &mut Tx<'_>, tenant: &Tenant, step: SnapshotStep) -> Result<()> {
    match step {
        SnapshotStep::Ready(id) => {
            let sql = "UPDATE snapshots SET state = ? WHERE tenant = ? AND id = ?";
            let changed = tx.execute(sql, params![Col(&SnapshotState::Ready), Col(tenant), Col(&id)])?;
            if changed == 1 { Ok(()) } else { Err(Error::Refused(format!("there is no {id}"))) }
        }
        SnapshotStep::Gone(id) => {
            let sql = "DELETE FROM snapshots WHERE tenant = ? AND id = ?";
            tx.execute(sql, params![Col(tenant), Col(&id)]).map(drop)
        }
    }
}

fn one(db: &Connection, tenant: &Tenant, id: SnapshotId) -> rusqlite::Result<Option<Snapshot>> {
    let sql = "SELECT * FROM snapshots WHERE tenant = ? AND id = ?";
    db.prepare_cached(sql)?.query_row(params![Col(tenant), Col(&id)], row).optional()
}

/// Without their notes.
fn all(db: &Connection, which: &str, values: impl Params) -> rusqlite::Result<Vec<Snapshot>> {
    let columns = "tenant, id, physical, sandbox, user, state, name, NULL AS about, built, created";
    db.prepare_cached(&format!("SELECT {columns} FROM snapshots WHERE {which}"))?.query_map(values, row)?.collect()
}

fn row(row: &Row<'_>) -> rusqlite::Result<Snapshot> {
    Ok(Snapshot {
        tenant: get(row, "tenant")?,
        id: get(row, "id")?,
        physical: get(row, "physical")?,
        sandbox: get(row, "sandbox")?,
        user: row.get("user")?,
        state: get(row, "state")?,
        about: AboutSnapshot { name: row.get("name")?, note: row.get("about")?, built: row.get("built")? },
        created: get(row, "created")?,
    })
}
