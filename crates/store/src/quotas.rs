//! Quotas, and what is held against them.
//!
//! Whether something may be claimed is decided inside the transaction that claims it, by whoever asks: of any number that ask at
//! once, only as many are admitted as there is room for.

use cabana_model::{Amounts, BOUNDLESS, KeyId, Quota, SandboxId, Tenant};
use rusqlite::{Connection, OptionalExtension, params};
use uuid::Uuid;

use crate::{
    Claim, Entry, Error, Record, Result, Store,
    desk::Tx,
    sandboxes::claimed,
    sql::{Col, get},
};

/// Whose quota it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub tenant: Tenant,
    /// `None`: the tenant's own.
    pub key: Option<KeyId>,
}

/// What is in the database: sandboxes in all, the limits of their disks, and what was stored when it was last measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    pub tenant: Amounts,
    pub key: Amounts,
}

/// What became of a claim that has to be admitted.
#[derive(Debug)]
pub enum Admitted<T, E> {
    /// The scope has one, in whatever state.
    There(Record),
    Made(Record, T),
    /// Another scope's sandbox has the id: nothing is written.
    Taken,
    /// Nothing is written.
    Refused(E),
}

/// What a tenant's calls and tasks said, of each key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub key: KeyId,
    /// In rows.
    pub bytes: u64,
    /// In files of their own.
    pub files: Vec<Uuid>,
}

/// A limit of a disk from which on it counts as none: so that no sum of any number of them is too large for its column.
const AS_GOOD_AS_NONE: u64 = 1 << 42;

pub(crate) fn bounded(disk: Option<u64>) -> Option<u64> {
    disk.filter(|disk| *disk < AS_GOOD_AS_NONE)
}

impl Store {
    /// As [`Store::claim`]; `admit` is asked, inside the transaction, where one would be made.
    pub async fn claim_if<T, E>(
        &self,
        claim: Claim,
        admit: impl FnOnce(Held) -> Result<T, E> + Send + 'static,
    ) -> Result<Admitted<T, E>>
    where
        T: Send + 'static,
        E: Send + 'static,
    {
        let tenant = claim.tenant.clone();
        self.write_for(&tenant, move |tx| claimed(tx, &claim, admit)).await
    }

    /// Asks between two writes: what is held stays so until the answer is there.
    pub async fn held_while<T: Send + 'static>(
        &self,
        tenant: &Tenant,
        key: Option<KeyId>,
        ask: impl FnOnce(Held) -> T + Send + 'static,
    ) -> Result<T> {
        let of = tenant.clone();
        self.write_for(tenant, move |tx| Ok(ask(held(tx.reads(), &of, key)?))).await
    }

    pub async fn held(&self, tenant: &Tenant, key: Option<KeyId>) -> Result<Held> {
        let tenant = tenant.clone();
        self.read(move |db| Ok(held(db, &tenant, key)?)).await
    }

    pub async fn quotas(&self) -> Result<Vec<(Owner, Quota)>> {
        self.read(|db| {
            let mut statement = db.prepare_cached("SELECT tenant, key, quota FROM quotas ORDER BY tenant, key")?;
            let rows = statement.query_map([], |row| {
                let key: Vec<u8> = row.get("key")?;
                let key = Uuid::from_slice(&key).ok().map(KeyId::from);
                Ok((Owner { tenant: get(row, "tenant")?, key }, row.get::<_, String>("quota")?))
            })?;
            rows.map(|row| {
                let (owner, text) = row?;
                let quota = serde_json::from_str(&text);
                quota.map(|quota| (owner, quota)).map_err(|error| Error::Corrupt(format!("a quota: {error}")))
            })
            .collect()
        })
        .await
    }

    /// `None` takes it away. `admit` is asked inside the transaction; what it refuses is not written, nor is its row of the ledger.
    pub async fn set_quota<E: Send + 'static>(
        &self,
        owner: &Owner,
        quota: Option<Quota>,
        entry: Entry,
        admit: impl FnOnce(Amounts) -> Result<(), E> + Send + 'static,
    ) -> Result<Result<(), E>> {
        let owner = owner.clone();
        self.write(move |tx| {
            let held = held(tx.reads(), &owner.tenant, owner.key)?;
            if let Err(refused) = admit(if owner.key.is_some() { held.key } else { held.tenant }) {
                return Ok(Err(refused));
            }
            set(tx, &owner, quota)?;
            tx.append(entry)?;
            Ok(Ok(()))
        })
        .await
    }

    /// What its files take, as they were just measured.
    pub async fn set_stored(&self, physical: &SandboxId, bytes: u64) -> Result<()> {
        let (physical, bytes) = (physical.clone(), bytes.min(AS_GOOD_AS_NONE));
        self.write(move |tx| {
            let sql = "UPDATE sandboxes SET stored = ?1 WHERE physical = ?2 AND stored != ?1";
            tx.execute(sql, params![bytes, Col(&physical)]).map(drop)
        })
        .await
    }

    /// What is recorded of each tenant's calls, in bytes: rows of the ledger, of calls and of tasks, but for what they said.
    pub async fn recorded(&self) -> Result<Vec<(Tenant, u64)>> {
        self.read(|db| {
            let mut statement = db.prepare_cached("SELECT tenant, bytes FROM recorded")?;
            let rows = statement.query_map([], |row| Ok((get(row, "tenant")?, row.get("bytes")?)))?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    /// Reads all rows of the tenant's calls and tasks.
    pub async fn said_by(&self, tenant: &Tenant) -> Result<Vec<Said>> {
        self.read_for(tenant, move |db, tenant| {
            let mut all: Vec<Said> = Vec::new();
            for table in ["calls", "tasks"] {
                let mut statement = db.prepare_cached(&format!(
                    "SELECT key, id, length(stdout) + length(stderr) AS bytes FROM {table} WHERE tenant = ? AND ended IS NOT NULL"
                ))?;
                let mut rows = statement.query([Col(tenant)])?;
                while let Some(row) = rows.next()? {
                    let key = get(row, "key")?;
                    let at = all.iter().position(|said| said.key == key).unwrap_or_else(|| {
                        all.push(Said { key, bytes: 0, files: Vec::new() });
                        all.len() - 1
                    });
                    match row.get::<_, Option<u64>>("bytes")? {
                        Some(bytes) => all[at].bytes += bytes,
                        None => all[at].files.push(get::<cabana_model::CallId>(row, "id")?.uuid()),
                    }
                }
            }
            Ok(all)
        })
        .await
    }
}

pub(crate) fn held(db: &Connection, tenant: &Tenant, key: Option<KeyId>) -> rusqlite::Result<Held> {
    let of = |key: &[u8]| {
        let sql = "SELECT sandboxes, disk, boundless, stored FROM holdings WHERE tenant = ? AND key = ?";
        let found = db.prepare_cached(sql)?.query_row(params![Col(tenant), key], |row| {
            let (disk, boundless) = (row.get::<_, u64>("disk")?, row.get::<_, u64>("boundless")?);
            Ok(Amounts {
                sandboxes: row.get::<_, u64>("sandboxes")?.into(),
                disk_bytes: u128::from(disk) + u128::from(boundless) * BOUNDLESS,
                stored_bytes: row.get::<_, u64>("stored")?.into(),
                ..Amounts::default()
            })
        });
        found.optional().map(Option::unwrap_or_default)
    };
    let key = match key {
        Some(key) => of(key.uuid().as_bytes())?,
        None => Amounts::default(),
    };
    Ok(Held { tenant: of(&[])?, key })
}

fn set(tx: &mut Tx<'_>, owner: &Owner, quota: Option<Quota>) -> Result<()> {
    let key = owner.key.map_or(Vec::new(), |key| key.uuid().as_bytes().to_vec());
    let text = quota.map(|quota| serde_json::to_string(&quota)).transpose();
    match text.map_err(|error| Error::Refused(format!("a quota: {error}")))? {
        Some(text) => {
            let sql = "INSERT OR REPLACE INTO quotas (tenant, key, quota) VALUES (?, ?, ?)";
            tx.execute(sql, params![Col(&owner.tenant), key, text])
        }
        None => tx.execute("DELETE FROM quotas WHERE tenant = ? AND key = ?", params![Col(&owner.tenant), key]),
    }
    .map(drop)
}
