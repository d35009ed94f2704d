//! The beginning of a chain that was kept for long enough. What is left of it is the number and the hash of its last row; and
//! the chain itself says, in a row of its own, that it was dropped.

use cabana_model::{Tenant, Time};
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};

use super::{Head, LedgerRow, row::to_hex, unseal};
use crate::{
    Entry, Error, Result, Store,
    sql::{Col, get},
};

/// The verb of the row that says it.
pub const DROP: &str = "ledger.drop";

/// How many rows are read or removed at once.
const AT_ONCE: u32 = 1000;

/// What a chain begins after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dropped {
    /// The last row that was dropped.
    #[serde(flatten)]
    pub upto: Head,
    /// How many were, in all.
    pub rows: u64,
    pub at: Time,
}

impl Dropped {
    /// Whether this row, which is in the chain, says that it was dropped.
    pub fn is_said_by(&self, row: &LedgerRow) -> bool {
        row.verb == DROP
            && matches!(&row.argv[..], [_, last, hash] if *last == self.upto.seq.to_string() && *hash == to_hex(&self.upto.hash))
    }
}

/// The beginning of a chain that is old enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Older {
    pub first: u64,
    pub upto: Head,
    pub bytes: u64,
}

impl Older {
    pub fn rows(&self) -> u64 {
        self.upto.seq + 1 - self.first
    }

    /// What the ledger keeps of it.
    pub fn argv(&self) -> Vec<String> {
        vec![self.first.to_string(), self.upto.seq.to_string(), to_hex(&self.upto.hash)]
    }
}

impl Store {
    pub async fn ledger_dropped(&self, tenant: &Tenant) -> Result<Option<Dropped>> {
        let tenant = tenant.clone();
        self.read(move |db| Ok(of(db, &tenant)?)).await
    }

    /// As far as every row is older than that. `None`: nothing is, or nothing but what says that others were dropped.
    pub async fn ledger_before(&self, tenant: &Tenant, before: Time) -> Result<Option<Older>> {
        let (mut found, mut worth, mut bytes) = (None::<Older>, false, 0);
        let mut after = self.ledger_dropped(tenant).await?.map_or(0, |dropped| dropped.upto.seq);
        loop {
            let page = self.sized(tenant, after).await?;
            for (row, size) in &page {
                if row.time >= before {
                    return Ok(found.filter(|_| worth));
                }
                bytes += size;
                worth |= row.verb != DROP;
                let first = found.as_ref().map_or(row.seq, |older| older.first);
                found = Some(Older { first, upto: Head { seq: row.seq, hash: row.hash }, bytes });
            }
            match page.last() {
                Some((last, _)) => after = last.seq,
                None => return Ok(found.filter(|_| worth)),
            }
        }
    }

    async fn sized(&self, tenant: &Tenant, after: u64) -> Result<Vec<(LedgerRow, u64)>> {
        let tenant = tenant.clone();
        self.read(move |db| {
            let sql = "SELECT seq, row, hash FROM ledger WHERE tenant = ? AND seq > ? ORDER BY seq LIMIT ?";
            let mut statement = db.prepare_cached(sql)?;
            let mut rows = statement.query(params![Col(&tenant), after, AT_ONCE])?;
            let mut page = Vec::new();
            while let Some(row) = rows.next()? {
                let text = row.get_ref(1)?.as_str().unwrap_or_default();
                page.push((unseal(&tenant, row.get(0)?, text, row.get(2)?)?, text.len() as u64));
            }
            Ok(page)
        })
        .await
    }

    /// From here on nobody sees it, and the chain says so: both or neither. What it took is given back by
    /// [`Store::sweep_ledger`].
    pub async fn drop_ledger(&self, older: Older, entry: Entry) -> Result<()> {
        self.write(move |tx| {
            let before = of(tx.reads(), &entry.tenant)?;
            let begins = before.as_ref().map_or(1, |dropped| dropped.upto.seq + 1);
            if older.first != begins {
                return Err(Error::Refused(format!("the ledger of {} begins at row {begins}", entry.tenant)));
            }
            tx.execute(
                "INSERT OR REPLACE INTO ledger_dropped (tenant, seq, hash, rows, at) VALUES (?, ?, ?, ?, ?)",
                params![
                    Col(&entry.tenant),
                    older.upto.seq,
                    older.upto.hash,
                    before.map_or(0, |dropped| dropped.rows) + older.rows(),
                    Col(&entry.at),
                ],
            )?;
            tx.append(entry)
        })
        .await
    }

    /// Removes what was dropped, a bit at a time. A kill leaves the rest to the next one.
    pub async fn sweep_ledger(&self, tenant: &Tenant) -> Result<()> {
        loop {
            let us = tenant.clone();
            let removed = self.write(move |tx| {
                tx.execute(
                    "DELETE FROM ledger WHERE tenant = ?1 AND seq IN
                       (SELECT seq FROM ledger WHERE tenant = ?1 AND seq <= (SELECT seq FROM ledger_dropped WHERE tenant = ?1)
                        ORDER BY seq LIMIT ?2)",
                    params![Col(&us), AT_ONCE],
                )
            });
            if removed.await? < AT_ONCE as usize {
                return Ok(());
            }
        }
    }
}

pub(super) fn of(db: &Connection, tenant: &Tenant) -> rusqlite::Result<Option<Dropped>> {
    let sql = "SELECT seq, hash, rows, at FROM ledger_dropped WHERE tenant = ?";
    let row = |row: &rusqlite::Row<'_>| {
        let upto = Head { seq: row.get("seq")?, hash: row.get("hash")? };
        Ok(Dropped { upto, rows: row.get("rows")?, at: get(row, "at")? })
    };
    db.prepare_cached(sql)?.query_row([Col(tenant)], row).optional()
}
