//! What steps of builds left behind, so that the next build with the same steps need not do them again.

use std::collections::BTreeSet;

use cabana_model::{SnapshotId, SnapshotState, Tenant, Time};
use rusqlite::{Connection, OptionalExtension, params};

use crate::{
    Result, Store,
    sql::{Col, get},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    pub snapshot: SnapshotId,
    /// Where the build stood then: the front's JSON.
    pub about: String,
}

/// How much of it is kept of one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub most: u32,
    /// What was used since.
    pub since: Time,
}

impl Store {
    /// One whose files are there. It counts as used now.
    pub async fn layer(&self, tenant: &Tenant, digest: [u8; 32], at: Time) -> Result<Option<Layer>> {
        let tenant = tenant.clone();
        self.write(move |tx| {
            let sql = "SELECT snapshot, build_layers.about AS about FROM build_layers JOIN snapshots
                         ON snapshots.tenant = build_layers.tenant AND snapshots.id = build_layers.snapshot
                         WHERE build_layers.tenant = ? AND digest = ? AND state = ?";
            let values = params![Col(&tenant), digest, Col(&SnapshotState::Ready)];
            let read =
                |row: &rusqlite::Row<'_>| Ok(Layer { snapshot: get(row, "snapshot")?, about: row.get("about")? });
            let found = tx.reads().prepare_cached(sql)?.query_row(values, read).optional()?;
            if found.is_some() {
                let sql = "UPDATE build_layers SET used = ? WHERE tenant = ? AND digest = ?";
                tx.execute(sql, params![Col(&at), Col(&tenant), digest])?;
            }
            Ok(found)
        })
        .await
    }

    /// In place of an older one. What is too old or too much goes: the snapshots that are nobody's by then.
    pub async fn add_layer(
        &self,
        tenant: &Tenant,
        digest: [u8; 32],
        layer: Layer,
        at: Time,
        kept: Kept,
    ) -> Result<Vec<SnapshotId>> {
        let tenant = tenant.clone();
        self.write(move |tx| {
            let mut held = BTreeSet::new();
            let sql = "SELECT snapshot FROM build_layers WHERE tenant = ?1 AND digest = ?2";
            let older: Option<SnapshotId> = tx
                .reads()
                .prepare_cached(sql)?
                .query_row(params![Col(&tenant), digest], |row| get(row, "snapshot"))
                .optional()?;
            held.extend(older);
            tx.execute(
                "INSERT INTO build_layers (tenant, digest, snapshot, about, used) VALUES (?, ?, ?, ?, ?)
                   ON CONFLICT (tenant, digest) DO UPDATE
                   SET snapshot = excluded.snapshot, about = excluded.about, used = excluded.used",
                params![Col(&tenant), digest, Col(&layer.snapshot), layer.about, Col(&at)],
            )?;
            let too_much = "tenant = ?1 AND (used < ?2 OR digest IN
                              (SELECT digest FROM build_layers WHERE tenant = ?1 ORDER BY used DESC, digest LIMIT -1 OFFSET ?3))";
            let values = params![Col(&tenant), Col(&kept.since), kept.most];
            {
                let mut going = tx.reads().prepare_cached(&format!("SELECT snapshot FROM build_layers WHERE {too_much}"))?;
                for snapshot in going.query_map(values, |row| get::<SnapshotId>(row, "snapshot"))? {
                    held.insert(snapshot?);
                }
            }
            tx.execute(&format!("DELETE FROM build_layers WHERE {too_much}"), values)?;
            Ok(loose(tx.reads(), &tenant, held)?)
        })
        .await
    }

    /// Of all tenants: what builds made for themselves and no build or layer refers to. A kill came between.
    pub async fn loose_snapshots(&self) -> Result<Vec<(Tenant, SnapshotId)>> {
        self.read(|db| {
            let sql = format!("SELECT tenant, id FROM snapshots AS s WHERE built != 0 AND state = ? AND {NOBODYS}");
            let mut found = db.prepare_cached(&sql)?;
            let rows = found
                .query_map(params![Col(&SnapshotState::Ready)], |row| Ok((get(row, "tenant")?, get(row, "id")?)))?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }
}

const NOBODYS: &str = "NOT EXISTS (SELECT 1 FROM builds WHERE builds.tenant = s.tenant AND builds.snapshot = s.id)
                       AND NOT EXISTS (SELECT 1 FROM build_layers AS l WHERE l.tenant = s.tenant AND l.snapshot = s.id)";

/// Those of them that nobody refers to any more.
pub(crate) fn loose(
    db: &Connection,
    tenant: &Tenant,
    among: BTreeSet<SnapshotId>,
) -> rusqlite::Result<Vec<SnapshotId>> {
    let sql = format!("SELECT 1 FROM snapshots AS s WHERE tenant = ? AND id = ? AND built != 0 AND {NOBODYS}");
    let mut query = db.prepare_cached(&sql)?;
    let mut loose = Vec::new();
    for snapshot in among {
        if query.exists(params![Col(tenant), Col(&snapshot)])? {
            loose.push(snapshot);
        }
    }
    Ok(loose)
}
