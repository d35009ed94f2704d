//! Tags: what leads from a template to one of its builds.

use std::collections::BTreeSet;

use cabana_model::{BuildId, TemplateId, Tenant, Time};
use rusqlite::{OptionalExtension, Row, params};

use crate::{
    Build, Result, Store,
    builds::one,
    desk::Tx,
    sql::{Col, get},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    pub tag: String,
    pub build: BuildId,
    pub created: Time,
}

impl Store {
    /// By name.
    pub async fn build_tags(&self, tenant: &Tenant, template: TemplateId) -> Result<Vec<Tag>> {
        self.read_for(tenant, move |db, tenant| {
            let sql = "SELECT * FROM build_tags WHERE tenant = ? AND template = ? ORDER BY tag";
            let mut found = db.prepare_cached(sql)?;
            let rows = found.query_map(params![Col(tenant), Col(&template)], tag_row)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    /// The build that it leads to.
    pub async fn tagged(&self, tenant: &Tenant, template: TemplateId, tag: &str) -> Result<Option<Build>> {
        let (of, tag) = (tenant.clone(), tag.to_owned());
        self.glance_for(tenant, move |db| {
            let sql = "SELECT build FROM build_tags WHERE tenant = ? AND template = ? AND tag = ?";
            let values = params![Col(&of), Col(&template), tag];
            let found: Option<BuildId> =
                db.prepare_cached(sql)?.query_row(values, |row| get(row, "build")).optional()?;
            match found {
                Some(build) => Ok(one(db, &of, build)?),
                None => Ok(None),
            }
        })
        .await
    }

    /// False: its template would have more than so many then, and nothing is done.
    pub async fn tag_build(
        &self,
        tenant: &Tenant,
        build: &Build,
        tags: Vec<String>,
        most: usize,
        at: Time,
    ) -> Result<bool> {
        let (tenant, template, id) = (tenant.clone(), build.template, build.id);
        self.write(move |tx| {
            let sql = "SELECT tag FROM build_tags WHERE tenant = ? AND template = ?";
            let mut all: BTreeSet<String> = {
                let mut found = tx.reads().prepare_cached(sql)?;
                let rows = found.query_map(params![Col(&tenant), Col(&template)], |row| row.get(0))?;
                rows.collect::<rusqlite::Result<_>>()?
            };
            all.extend(tags.iter().cloned());
            if all.len() > most {
                return Ok(false);
            }
            tags.iter().try_for_each(|tag| put_tag(tx, &tenant, template, tag, id, at))?;
            Ok(true)
        })
        .await
    }

    /// How many of them there were.
    pub async fn untag(&self, tenant: &Tenant, template: TemplateId, tags: Vec<String>) -> Result<usize> {
        let tenant = tenant.clone();
        self.write(move |tx| {
            let sql = "DELETE FROM build_tags WHERE tenant = ? AND template = ? AND tag = ?";
            let mut gone = 0;
            for tag in &tags {
                gone += tx.execute(sql, params![Col(&tenant), Col(&template), tag])?;
            }
            Ok(gone)
        })
        .await
    }
}

pub(crate) fn put_tag(
    tx: &mut Tx<'_>,
    tenant: &Tenant,
    template: TemplateId,
    tag: &str,
    build: BuildId,
    at: Time,
) -> Result<()> {
    let sql = "INSERT INTO build_tags (tenant, template, tag, build, created) VALUES (?, ?, ?, ?, ?)
               ON CONFLICT (tenant, template, tag) DO UPDATE SET build = excluded.build, created = excluded.created";
    tx.execute(sql, params![Col(tenant), Col(&template), tag, Col(&build), Col(&at)]).map(drop)
}

fn tag_row(row: &Row<'_>) -> rusqlite::Result<Tag> {
    Ok(Tag { tag: row.get("tag")?, build: get(row, "build")?, created: get(row, "created")? })
}
