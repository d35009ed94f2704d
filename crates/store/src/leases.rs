//! Whose a sandbox is for a while. A lease ends by itself, so that nobody who went away holds others up.

use cabana_model::{SandboxId, Time};
use rusqlite::{Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use crate::{
    Result, Store,
    sql::{Col, get, maybe},
};

/// What shows that a lease is one's own. Drawn by chance.
pub type Token = Uuid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub token: Token,
    /// In its own words.
    pub holder: String,
    pub until: Time,
}

impl Lease {
    pub fn stands(&self, now: Time) -> bool {
        self.until > now
    }
}

impl Store {
    /// The lease that there is then: this one, unless somebody else has one. `None`: there is no such sandbox.
    pub async fn take_lease(&self, physical: &SandboxId, lease: Lease, now: Time) -> Result<Option<Lease>> {
        let physical = physical.clone();
        self.write(move |tx| {
            match standing(tx.reads(), &physical, now)? {
                Some(there) if there.token != lease.token => return Ok(Some(there)),
                _ => {}
            }
            let sql = "UPDATE sandboxes SET lease_token = ?, lease_holder = ?, lease_until = ? WHERE physical = ?";
            let taken = tx.execute(sql, params![Col(&lease.token), lease.holder, Col(&lease.until), Col(&physical)])?;
            Ok((taken > 0).then_some(lease))
        })
        .await
    }

    /// `None`: it has ended, or was never this one.
    pub async fn renew_lease(
        &self,
        physical: &SandboxId,
        token: Token,
        now: Time,
        until: Time,
    ) -> Result<Option<Lease>> {
        let physical = physical.clone();
        self.write(move |tx| {
            let own = standing(tx.reads(), &physical, now)?.filter(|there| there.token == token);
            let Some(own) = own else { return Ok(None) };
            let sql = "UPDATE sandboxes SET lease_until = ? WHERE physical = ?";
            tx.execute(sql, params![Col(&until), Col(&physical)])?;
            Ok(Some(Lease { until, ..own }))
        })
        .await
    }

    /// False: it had ended, or was never this one. Another one's stays.
    pub async fn end_lease(&self, physical: &SandboxId, token: Token, now: Time) -> Result<bool> {
        let physical = physical.clone();
        self.write(move |tx| {
            let sql = "UPDATE sandboxes SET lease_token = NULL, lease_holder = NULL, lease_until = NULL
                       WHERE physical = ? AND lease_token = ? AND lease_until > ?";
            Ok(tx.execute(sql, params![Col(&physical), Col(&token), Col(&now)])? > 0)
        })
        .await
    }
}

fn standing(db: &Connection, physical: &SandboxId, now: Time) -> rusqlite::Result<Option<Lease>> {
    let sql = "SELECT lease_token, lease_holder, lease_until FROM sandboxes WHERE physical = ? AND lease_until > ?";
    db.prepare_cached(sql)?.query_row(params![Col(physical), Col(&now)], of).optional().map(Option::flatten)
}

/// In the row of a sandbox.
pub(crate) fn of(row: &Row<'_>) -> rusqlite::Result<Option<Lease>> {
    let Some(token) = maybe(row, "lease_token")? else { return Ok(None) };
    Ok(Some(Lease { token, holder: row.get("lease_holder")?, until: get(row, "lease_until")? }))
}
