//! Usage by day and verb, as the ledger says. A row of the ledger is counted once, and read no second time.

use std::collections::BTreeMap;

use cabana_model::Tenant;
use rusqlite::{OptionalExtension, params};

use crate::{LedgerRow, Result, Store, desk::Tx, ledger::rows, sql::Col};

/// What a tenant did on one day with one verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// As `2026-01-31`, in UTC.
    pub day: String,
    pub verb: String,
    pub calls: u64,
    pub failed: u64,
    pub ms: u64,
}

/// So many rows at a time: no call waits longer for them.
const AT_ONCE: u32 = 500;

impl Store {
    /// Of the days from the first to the last, in order. Days are compared as texts.
    pub async fn usage(&self, tenant: &Tenant, from: String, to: String) -> Result<Vec<Usage>> {
        self.count_usage(tenant).await?;
        self.read_for(tenant, move |db, tenant| {
            let sql = "SELECT day, verb, calls, failed, ms FROM usage WHERE tenant = ? AND day BETWEEN ? AND ? ORDER BY day, verb";
            let mut statement = db.prepare_cached(sql)?;
            let rows = statement.query_map(params![Col(tenant), from, to], |row| {
                Ok(Usage {
                    day: row.get("day")?,
                    verb: row.get("verb")?,
                    calls: row.get("calls")?,
                    failed: row.get("failed")?,
                    ms: row.get("ms")?,
                })
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    /// Counts what the ledger has and nobody has counted. Whoever lets rows of the ledger go, counts them before.
    pub async fn count_usage(&self, tenant: &Tenant) -> Result<()> {
        loop {
            let of = tenant.clone();
            if self.write(move |tx| count(tx, &of)).await? < AT_ONCE as usize {
                return Ok(());
            }
        }
    }
}

/// A chunk and how far it goes, both or neither.
fn count(tx: &mut Tx<'_>, tenant: &Tenant) -> Result<usize> {
    let sql = "SELECT seq FROM usage_counted WHERE tenant = ?";
    let counted = tx.reads().prepare_cached(sql)?.query_row([Col(tenant)], |row| row.get(0)).optional()?;
    let new = rows(tx.reads(), tenant, counted.unwrap_or(0), AT_ONCE, usize::MAX)?;
    let Some(last) = new.last().map(|row| row.seq) else { return Ok(0) };
    let mut sums: BTreeMap<(String, &str), (u64, u64, u64)> = BTreeMap::new();
    for row in &new {
        let (calls, failed, ms) = sums.entry((day(row), &row.verb)).or_default();
        *calls += 1;
        *failed += u64::from(!matches!(row.outcome.as_str(), "answered" | "succeeded"));
        *ms += row.duration_ms;
    }
    for ((day, verb), (calls, failed, ms)) in sums {
        tx.execute(
            "INSERT INTO usage (tenant, day, verb, calls, failed, ms) VALUES (?, ?, ?, ?, ?, ?)
             ON CONFLICT (tenant, day, verb) DO UPDATE SET calls = calls + excluded.calls,
               failed = failed + excluded.failed, ms = ms + excluded.ms",
            params![Col(tenant), day, verb, calls, failed, ms],
        )?;
    }
    let sql = "INSERT OR REPLACE INTO usage_counted (tenant, seq) VALUES (?, ?)";
    tx.execute(sql, params![Col(tenant), last])?;
    Ok(new.len())
}

/// The first ten letters of a time are its day, in UTC.
fn day(row: &LedgerRow) -> String {
    row.time.to_string().chars().take(10).collect()
}
