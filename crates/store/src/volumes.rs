//! The records of volumes. One is claimed before the provider makes it and goes after the provider has removed it, so none exists
//! that nobody knows of.

use cabana_model::{Tenant, Time, VolumeId, VolumeName, VolumeState};
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use crate::{
    Error, Page, Result, Store,
    sql::{Col, get},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    pub tenant: Tenant,
    pub name: VolumeName,
    pub physical: VolumeId,
    pub state: VolumeState,
    pub created: Time,
}

impl Volume {
    /// Where a list goes on after it.
    pub fn cursor(&self) -> String {
        self.name.to_string()
    }
}

impl Store {
    /// False: the tenant has one of this name, in whatever state.
    pub async fn claim_volume(&self, new: Volume) -> Result<bool> {
        let tenant = new.tenant.clone();
        self.write_for(&tenant, move |tx| {
            if one(tx.reads(), &new.tenant, &new.name)?.is_some() {
                return Ok(false);
            }
            tx.execute(
                "INSERT INTO volumes (tenant, name, physical, state, created) VALUES (?, ?, ?, ?, ?)",
                params![Col(&new.tenant), Col(&new.name), Col(&new.physical), Col(&new.state), Col(&new.created)],
            )?;
            Ok(true)
        })
        .await
    }

    /// From one state to another. `None`: there is none of this name in the first.
    pub async fn step_volume(
        &self,
        tenant: &Tenant,
        name: &VolumeName,
        from: VolumeState,
        to: VolumeState,
    ) -> Result<Option<Volume>> {
        let (tenant, name) = (tenant.clone(), name.clone());
        self.write(move |tx| {
            let sql = "UPDATE volumes SET state = ? WHERE tenant = ? AND name = ? AND state = ?";
            match tx.execute(sql, params![Col(&to), Col(&tenant), Col(&name), Col(&from)])? {
                0 => Ok(None),
                _ => Ok(one(tx.reads(), &tenant, &name)?),
            }
        })
        .await
    }

    /// Of one that is ready, or whose removal has failed halfway. `None`: there is neither of this name.
    pub async fn begin_removal(&self, tenant: &Tenant, name: &VolumeName) -> Result<Option<Volume>> {
        match self.step_volume(tenant, name, VolumeState::Ready, VolumeState::Deleting).await? {
            None => self.step_volume(tenant, name, VolumeState::Deleting, VolumeState::Deleting).await,
            going => Ok(going),
        }
    }

    /// The record of a volume that is gone.
    pub async fn forget_volume(&self, physical: VolumeId) -> Result<()> {
        self.write(move |tx| tx.execute("DELETE FROM volumes WHERE physical = ?", params![Col(&physical)]).map(drop))
            .await
    }

    /// One that is ready.
    pub async fn volume(&self, tenant: &Tenant, name: &VolumeName) -> Result<Option<Volume>> {
        let name = name.clone();
        let found = self.read_for(tenant, move |db, tenant| Ok(one(db, tenant, &name)?)).await?;
        Ok(found.filter(|found| found.state == VolumeState::Ready))
    }

    /// Those that are ready, by name.
    pub async fn volumes(&self, tenant: &Tenant, page: Page) -> Result<Vec<Volume>> {
        let after = cursor(&page)?;
        self.read_for(tenant, move |db, tenant| {
            let which = "tenant = ? AND name > ? AND state = ? ORDER BY name LIMIT ?";
            Ok(all(db, which, params![Col(tenant), after, Col(&VolumeState::Ready), page.rows()])?)
        })
        .await
    }

    /// Those that may have files, in whatever state, by name.
    pub async fn stored_volumes(&self, tenant: &Tenant, page: Page) -> Result<Vec<Volume>> {
        let after = cursor(&page)?;
        self.read_for(tenant, move |db, tenant| {
            let which = "tenant = ? AND name > ? ORDER BY name LIMIT ?";
            Ok(all(db, which, params![Col(tenant), after, page.rows()])?)
        })
        .await
    }

    /// Those of them that there is no record of.
    pub async fn missing_volumes(&self, physical: Vec<VolumeId>) -> Result<Vec<VolumeId>> {
        self.read(move |db| {
            let mut find = db.prepare_cached("SELECT 1 FROM volumes WHERE physical = ?")?;
            let mut missing = Vec::new();
            for id in physical {
                if !find.exists([Col(&id)])? {
                    missing.push(id);
                }
            }
            Ok(missing)
        })
        .await
    }

    /// Of all tenants, in whatever state.
    pub async fn all_volumes(&self) -> Result<Vec<Volume>> {
        self.read(|db| Ok(all(db, "true", [])?)).await
    }
}

fn cursor(page: &Page) -> Result<String> {
    match &page.after {
        Some(cursor) => Ok(VolumeName::new(cursor.as_str()).map_err(|_| Error::Cursor)?.to_string()),
        None => Ok(String::new()),
    }
}

fn one(db: &Connection, tenant: &Tenant, name: &VolumeName) -> rusqlite::Result<Option<Volume>> {
    let sql = "SELECT * FROM volumes WHERE tenant = ? AND name = ?";
    db.prepare_cached(sql)?.query_row(params![Col(tenant), Col(name)], row).optional()
}

fn all(db: &Connection, which: &str, values: impl Params) -> rusqlite::Result<Vec<Volume>> {
    db.prepare_cached(&format!("SELECT * FROM volumes WHERE {which}"))?.query_map(values, row)?.collect()
}

fn row(row: &Row<'_>) -> rusqlite::Result<Volume> {
    Ok(Volume {
        tenant: get(row, "tenant")?,
        name: get(row, "name")?,
        physical: get(row, "physical")?,
        state: get(row, "state")?,
        created: get(row, "created")?,
    })
}
