//! What happened: one chain of rows for each tenant, each with the hash of the one before.

mod dropped;
mod row;
mod verify;

use std::collections::HashMap;

use cabana_model::Tenant;
use rusqlite::{Connection, OptionalExtension, params};

pub use dropped::{DROP, Dropped, Older};
pub use row::{Entry, Head, LedgerRow};
pub use verify::{Broken, verify};

use crate::{
    Error, Result, Store, page,
    sql::{Col, get},
};

impl Store {
    /// In the order in which it happened.
    pub async fn ledger(&self, tenant: &Tenant, after: u64, limit: u32) -> Result<Vec<LedgerRow>> {
        Ok(self.ledger_page(tenant, after, limit).await?.0)
    }

    /// With what is missing before the first row, both of one moment.
    pub async fn ledger_page(
        &self,
        tenant: &Tenant,
        after: u64,
        limit: u32,
    ) -> Result<(Vec<LedgerRow>, Option<Dropped>)> {
        self.read_for(tenant, move |db, tenant| {
            loop {
                let dropped = dropped::of(db, tenant)?;
                let begins_after = dropped.as_ref().map_or(0, |dropped| dropped.upto.seq);
                let rows = rows(db, tenant, after.max(begins_after), limit, page::MAX_BYTES)?;
                if dropped::of(db, tenant)? == dropped {
                    return Ok((rows, dropped));
                }
            }
        })
        .await
    }

    /// The tip. Whoever keeps it elsewhere can show later that the end was not cut off.
    pub async fn ledger_head(&self, tenant: &Tenant) -> Result<Option<Head>> {
        self.read_for(tenant, move |db, tenant| Ok(tip(db, tenant)?)).await
    }

    /// Those that have a chain.
    pub async fn tenants(&self) -> Result<Vec<Tenant>> {
        self.read(|db| Ok(tenants(db)?)).await
    }
}

pub(crate) fn tenants(db: &Connection) -> rusqlite::Result<Vec<Tenant>> {
    // From name to name by the index: the rows of a chain are many.
    let mut statement = db.prepare_cached(
        "WITH RECURSIVE names (tenant) AS (
           SELECT min(tenant) FROM ledger
           UNION ALL
           SELECT (SELECT min(tenant) FROM ledger WHERE tenant > names.tenant) FROM names WHERE names.tenant IS NOT NULL
         ) SELECT tenant FROM names WHERE tenant IS NOT NULL",
    )?;
    let rows = statement.query_map([], |row| get(row, "tenant"))?;
    rows.collect()
}

/// No more once they have so many bytes.
pub(crate) fn rows(
    db: &Connection,
    tenant: &Tenant,
    after: u64,
    limit: u32,
    most_bytes: usize,
) -> Result<Vec<LedgerRow>> {
    let sql = "SELECT seq, row, hash FROM ledger WHERE tenant = ? AND seq > ? ORDER BY seq LIMIT ?";
    let mut statement = db.prepare_cached(sql)?;
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let mut rows = statement.query(params![Col(tenant), after, limit])?;
    let (mut read, mut bytes) = (Vec::new(), 0);
    while bytes < most_bytes
        && let Some(row) = rows.next()?
    {
        let text = row.get_ref(1)?.as_str().unwrap_or_default();
        bytes += text.len();
        read.push(unseal(tenant, row.get(0)?, text, row.get(2)?)?);
    }
    Ok(read)
}

/// The row as it was written. One that cannot be read was changed by somebody else.
fn unseal(tenant: &Tenant, seq: u64, text: &str, hash: [u8; 32]) -> Result<LedgerRow> {
    let foreign = |why: String| Error::Corrupt(format!("row {seq} of the ledger of {tenant}: {why}"));
    let row: LedgerRow = serde_json::from_str(text).map_err(|error| foreign(error.to_string()))?;
    if row.tenant != *tenant {
        return Err(foreign(format!("belongs to {}", row.tenant)));
    }
    Ok(LedgerRow { hash, ..row })
}

fn tip(db: &Connection, tenant: &Tenant) -> rusqlite::Result<Option<Head>> {
    let sql = "SELECT seq, hash FROM ledger WHERE tenant = ? ORDER BY seq DESC LIMIT 1";
    db.prepare_cached(sql)?.query_row([Col(tenant)], |row| Ok(Head { seq: row.get(0)?, hash: row.get(1)? })).optional()
}

/// Where each chain ends, as who writes knows it.
#[derive(Default)]
pub(crate) struct Tips(HashMap<Tenant, Head>);

impl Tips {
    pub(crate) fn last(&self, db: &Connection, tenant: &Tenant) -> Result<Head> {
        match self.0.get(tenant) {
            Some(last) => Ok(last.clone()),
            None => Ok(tip(db, tenant)?.unwrap_or_default()),
        }
    }

    pub(crate) fn grow(&mut self, tenant: Tenant, head: Head) {
        self.0.insert(tenant, head);
    }
}
