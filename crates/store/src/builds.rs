//! What tenants build for themselves: templates, the tries to make them, and the tags that lead to what came of those.
//!
//! The files of a build are a snapshot that it made for itself. It goes with the last build or layer that refers to it: whoever
//! takes a reference away is told which snapshots nobody refers to any more, and removes them.

use std::collections::BTreeSet;

use cabana_model::{BuildId, BuildState, KeyId, SnapshotId, TemplateId, Tenant, Time};
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use crate::{
    Entry, Result, RowSize, Store,
    build_layers::{forget_layers, loose},
    build_tags::put_tag,
    desk::Tx,
    sql::{Col, get, maybe},
};

/// Of one template: how many builds stay that no tag leads to.
const UNTAGGED: i64 = 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnTemplate {
    pub id: TemplateId,
    pub name: String,
    pub created: Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBuild {
    pub tenant: Tenant,
    pub id: BuildId,
    /// Of a template that need not be there yet.
    pub name: String,
    /// What leads to it once it is ready.
    pub tags: Vec<String>,
    pub about: String,
    pub at: Time,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    pub id: BuildId,
    pub template: TemplateId,
    pub state: BuildState,
    pub tags: Vec<String>,
    pub about: String,
    pub made: Option<String>,
    pub snapshot: Option<SnapshotId>,
    /// Why it failed, and at which step.
    pub reason: Option<String>,
    pub step: Option<String>,
    pub log: Option<String>,
    pub created: Time,
    pub ended: Option<Time>,
}

/// As lists tell it. There may be very many, and the rest of one may be long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedBuild {
    pub id: BuildId,
    pub state: BuildState,
    pub about: String,
    pub created: Time,
    pub ended: Option<Time>,
}

impl RowSize for ListedBuild {
    fn size(&self) -> usize {
        size_of::<Self>() + self.about.len()
    }
}

/// As lists tell it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedTemplate {
    pub template: OwnTemplate,
    pub builds: u32,
    pub newest: Option<ListedBuild>,
    /// The newest that is ready.
    pub ready: Option<ListedBuild>,
}

impl RowSize for ListedTemplate {
    fn size(&self) -> usize {
        let builds: usize = [&self.newest, &self.ready].into_iter().flatten().map(|build| build.about.len()).sum();
        size_of::<Self>() + self.template.name.len() + builds
    }
}

/// How a build ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    pub tenant: Tenant,
    pub id: BuildId,
    /// What sandboxes begin with, and the snapshot among it. `Err`: the reason, and the step.
    pub came: Result<(String, Option<SnapshotId>), (String, Option<String>)>,
    pub log: String,
    pub at: Time,
}

/// One that was begun, and that no server goes on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBuild {
    pub tenant: Tenant,
    pub id: BuildId,
    /// Which key began it, where that is known.
    pub key: Option<KeyId>,
}

impl Store {
    /// The template that it is for, and the snapshots that are nobody's by now. `None`: the tenant has as many as it may.
    pub async fn claim_build(&self, new: NewBuild, most: u32) -> Result<Option<(TemplateId, Vec<SnapshotId>)>> {
        let tenant = new.tenant.clone();
        self.write_for(&tenant, move |tx| {
            let template = match named(tx.reads(), &new.tenant, &new.name)? {
                Some(found) => found.id,
                None => {
                    let sql = "SELECT count(*) FROM own_templates WHERE tenant = ?";
                    let there: u32 =
                        tx.reads().prepare_cached(sql)?.query_row(params![Col(&new.tenant)], |row| row.get(0))?;
                    if there >= most {
                        return Ok(None);
                    }
                    let id = TemplateId::from(new.id.uuid());
                    let sql = "INSERT INTO own_templates (tenant, id, name, created) VALUES (?, ?, ?, ?)";
                    tx.execute(sql, params![Col(&new.tenant), Col(&id), new.name, Col(&new.at)])?;
                    id
                }
            };
            let gone = prune(tx, &new.tenant, template)?;
            tx.execute(
                "INSERT INTO builds (tenant, id, template, state, tags, about, created) VALUES (?, ?, ?, ?, ?, ?, ?)",
                params![
                    Col(&new.tenant),
                    Col(&new.id),
                    Col(&template),
                    Col(&BuildState::Waiting),
                    Col(&new.tags),
                    new.about,
                    Col(&new.at),
                ],
            )?;
            Ok(Some((template, gone)))
        })
        .await
    }

    /// False: it is there no more, or was begun before.
    pub async fn begin_build(&self, tenant: &Tenant, id: BuildId, key: KeyId) -> Result<bool> {
        let tenant = tenant.clone();
        self.write(move |tx| {
            let sql = "UPDATE builds SET state = ?, key = ? WHERE tenant = ? AND id = ? AND state = ?";
            let (from, to) = (BuildState::Waiting, BuildState::Building);
            Ok(tx.execute(sql, params![Col(&to), Col(&key), Col(&tenant), Col(&id), Col(&from)])? == 1)
        })
        .await
    }

    /// With its tags and its row of the ledger, all or nothing. False: it went meanwhile, and what it made is nobody's.
    pub async fn end_build(&self, built: Built, entry: Entry) -> Result<bool> {
        self.write(move |tx| {
            let Built { tenant, id, came, log, at } = built;
            tx.append(entry)?;
            let state = if came.is_ok() { BuildState::Ready } else { BuildState::Failed };
            let (made, snapshot, reason, step) = match came {
                Ok((made, snapshot)) => (Some(made), snapshot, None, None),
                Err((reason, step)) => (None, None, Some(reason), step),
            };
            let changed = tx.execute(
                "UPDATE builds SET state = ?, made = ?, snapshot = ?, reason = ?, step = ?, log = ?, ended = ?
                   WHERE tenant = ? AND id = ? AND state = ?",
                params![
                    Col(&state),
                    made,
                    snapshot.as_ref().map(Col),
                    reason,
                    step,
                    log,
                    Col(&at),
                    Col(&tenant),
                    Col(&id),
                    Col(&BuildState::Building),
                ],
            )?;
            if changed == 0 {
                return Ok(false);
            }
            if let (BuildState::Ready, Some(build)) = (state, one(tx.reads(), &tenant, id)?) {
                for tag in &build.tags {
                    put_tag(tx, &tenant, build.template, tag, id, at)?;
                }
            }
            Ok(true)
        })
        .await
    }

    /// Those that the last server did not bring to their end, of all tenants: nothing does any more. Each with its row of the ledger, all
    /// or nothing. How many.
    pub async fn fail_builds(
        &self,
        reason: &str,
        at: Time,
        entry: impl Fn(&LeftBuild) -> Entry + Send + 'static,
    ) -> Result<usize> {
        let reason = reason.to_owned();
        self.write(move |tx| {
            let (from, to) = (BuildState::Building, BuildState::Failed);
            let left = left(tx.reads(), from)?;
            for build in &left {
                tx.append(entry(build))?;
            }
            let sql = "UPDATE builds SET state = ?, reason = ?, ended = ?, snapshot = NULL WHERE state = ?";
            tx.execute(sql, params![Col(&to), reason, Col(&at), Col(&from)])?;
            Ok(left.len())
        })
        .await
    }

    pub async fn build(&self, tenant: &Tenant, id: BuildId) -> Result<Option<Build>> {
        // With its log, which may be long.
        self.read_for(tenant, move |db, tenant| Ok(one(db, tenant, id)?)).await
    }

    /// All of a template, the newest first.
    pub async fn builds(&self, tenant: &Tenant, template: TemplateId) -> Result<Vec<ListedBuild>> {
        self.read_for(tenant, move |db, tenant| {
            let sql = "SELECT id, state, about, created, ended FROM builds WHERE tenant = ? AND template = ? ORDER BY id DESC";
            let mut found = db.prepare_cached(sql)?;
            let rows = found.query_map(params![Col(tenant), Col(&template)], listed_row)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    pub async fn own_template(&self, tenant: &Tenant, id: TemplateId) -> Result<Option<OwnTemplate>> {
        let of = tenant.clone();
        self.glance_for(tenant, move |db| {
            let sql = "SELECT * FROM own_templates WHERE tenant = ? AND id = ?";
            Ok(db.prepare_cached(sql)?.query_row(params![Col(&of), Col(&id)], template_row).optional()?)
        })
        .await
    }

    pub async fn own_template_named(&self, tenant: &Tenant, name: &str) -> Result<Option<OwnTemplate>> {
        let (of, name) = (tenant.clone(), name.to_owned());
        self.glance_for(tenant, move |db| Ok(named(db, &of, &name)?)).await
    }

    pub async fn listed_template(&self, tenant: &Tenant, id: TemplateId) -> Result<Option<ListedTemplate>> {
        self.read_for(tenant, move |db, tenant| {
            let sql = "SELECT * FROM own_templates WHERE tenant = ? AND id = ?";
            let found = db.prepare_cached(sql)?.query_row(params![Col(tenant), Col(&id)], template_row).optional()?;
            Ok(found.map(|template| listed(db, tenant, template)).transpose()?)
        })
        .await
    }

    /// By name.
    pub async fn listed_templates(&self, tenant: &Tenant) -> Result<Vec<ListedTemplate>> {
        self.read_for(tenant, move |db, tenant| {
            let mut found = db.prepare_cached("SELECT * FROM own_templates WHERE tenant = ? ORDER BY name")?;
            let templates = found.query_map(params![Col(tenant)], template_row)?;
            Ok(templates.map(|template| listed(db, tenant, template?)).collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    /// With all of it; with the last one, what steps left goes too. The snapshots that are nobody's by then; `None`: there is none.
    pub async fn remove_own_template(&self, tenant: &Tenant, id: TemplateId) -> Result<Option<Vec<SnapshotId>>> {
        let tenant = tenant.clone();
        self.write(move |tx| {
            let of_it = "tenant = ? AND template = ? AND snapshot IS NOT NULL";
            let of_it = snapshots(tx.reads(), of_it, params![Col(&tenant), Col(&id)])?;
            let mut held: BTreeSet<SnapshotId> = of_it.into_iter().filter_map(|(_, snapshot)| snapshot).collect();
            for sql in [
                "DELETE FROM build_tags WHERE tenant = ? AND template = ?",
                "DELETE FROM builds WHERE tenant = ? AND template = ?",
            ] {
                tx.execute(sql, params![Col(&tenant), Col(&id)])?;
            }
            let sql = "DELETE FROM own_templates WHERE tenant = ? AND id = ?";
            if tx.execute(sql, params![Col(&tenant), Col(&id)])? == 0 {
                return Ok(None);
            }
            let sql = "SELECT 1 FROM own_templates WHERE tenant = ?";
            if !tx.reads().prepare_cached(sql)?.exists(params![Col(&tenant)])? {
                held.extend(forget_layers(tx, &tenant)?);
            }
            Ok(Some(loose(tx.reads(), &tenant, held)?))
        })
        .await
    }
}

/// Those that no tag leads to go but for the newest.
fn prune(tx: &mut Tx<'_>, tenant: &Tenant, template: TemplateId) -> Result<Vec<SnapshotId>> {
    let which = "tenant = ?1 AND template = ?2 AND state != ?3 AND id NOT IN
                   (SELECT build FROM build_tags WHERE tenant = ?1 AND template = ?2) ORDER BY id DESC LIMIT -1 OFFSET ?4";
    let building = BuildState::Building;
    let old = snapshots(tx.reads(), which, params![Col(tenant), Col(&template), Col(&building), UNTAGGED])?;
    for (id, _) in &old {
        tx.execute("DELETE FROM builds WHERE tenant = ? AND id = ?", params![Col(tenant), Col(id)])?;
    }
    Ok(loose(tx.reads(), tenant, old.into_iter().filter_map(|(_, snapshot)| snapshot).collect())?)
}

fn named(db: &Connection, tenant: &Tenant, name: &str) -> rusqlite::Result<Option<OwnTemplate>> {
    let sql = "SELECT * FROM own_templates WHERE tenant = ? AND name = ?";
    db.prepare_cached(sql)?.query_row(params![Col(tenant), name], template_row).optional()
}

pub(crate) fn one(db: &Connection, tenant: &Tenant, id: BuildId) -> rusqlite::Result<Option<Build>> {
    let sql = "SELECT * FROM builds WHERE tenant = ? AND id = ?";
    db.prepare_cached(sql)?.query_row(params![Col(tenant), Col(&id)], row).optional()
}

fn left(db: &Connection, state: BuildState) -> rusqlite::Result<Vec<LeftBuild>> {
    let mut found = db.prepare_cached("SELECT tenant, id, key FROM builds WHERE state = ? ORDER BY tenant, id")?;
    let rows = found.query_map(params![Col(&state)], |row| {
        Ok(LeftBuild { tenant: get(row, "tenant")?, id: get(row, "id")?, key: maybe(row, "key")? })
    })?;
    rows.collect()
}

/// What these builds hold.
fn snapshots(
    db: &Connection,
    which: &str,
    values: impl Params,
) -> rusqlite::Result<Vec<(BuildId, Option<SnapshotId>)>> {
    let mut found = db.prepare_cached(&format!("SELECT id, snapshot FROM builds WHERE {which}"))?;
    found.query_map(values, |row| Ok((get(row, "id")?, maybe(row, "snapshot")?)))?.collect()
}

fn listed(db: &Connection, tenant: &Tenant, template: OwnTemplate) -> rusqlite::Result<ListedTemplate> {
    let sql = "SELECT count(*) FROM builds WHERE tenant = ? AND template = ?";
    let builds = db.prepare_cached(sql)?.query_row(params![Col(tenant), Col(&template.id)], |row| row.get(0))?;
    let newest = |state: Option<BuildState>| {
        let sql = "SELECT id, state, about, created, ended FROM builds
                   WHERE tenant = ?1 AND template = ?2 AND (?3 IS NULL OR state = ?3) ORDER BY id DESC LIMIT 1";
        let state = state.as_ref().map(Col);
        db.prepare_cached(sql)?.query_row(params![Col(tenant), Col(&template.id), state], listed_row).optional()
    };
    let (newest, ready) = (newest(None)?, newest(Some(BuildState::Ready))?);
    Ok(ListedTemplate { template, builds, newest, ready })
}

fn listed_row(row: &Row<'_>) -> rusqlite::Result<ListedBuild> {
    Ok(ListedBuild {
        id: get(row, "id")?,
        state: get(row, "state")?,
        about: row.get("about")?,
        created: get(row, "created")?,
        ended: maybe(row, "ended")?,
    })
}

fn row(row: &Row<'_>) -> rusqlite::Result<Build> {
    Ok(Build {
        id: get(row, "id")?,
        template: get(row, "template")?,
        state: get(row, "state")?,
        tags: get(row, "tags")?,
        about: row.get("about")?,
        made: row.get("made")?,
        snapshot: maybe(row, "snapshot")?,
        reason: row.get("reason")?,
        step: row.get("step")?,
        log: row.get("log")?,
        created: get(row, "created")?,
        ended: maybe(row, "ended")?,
    })
}

fn template_row(row: &Row<'_>) -> rusqlite::Result<OwnTemplate> {
    Ok(OwnTemplate { id: get(row, "id")?, name: row.get("name")?, created: get(row, "created")? })
}
