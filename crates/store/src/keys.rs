//! Keys, by what is stored of them: a digest, never the key.

use cabana_model::{KeyId, Role, Tenant, Time};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::{
    Entry, Result, Store,
    sql::{Col, get, maybe},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    pub id: KeyId,
    pub tenant: Tenant,
    pub role: Role,
    pub name: String,
    pub subject: Option<String>,
    /// Whether it may name other users than its subject.
    pub any_subject: bool,
    pub digest: [u8; 32],
    pub created: Time,
    pub expires: Option<Time>,
}

/// Also one that is revoked or has expired: who asks judges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub id: KeyId,
    pub tenant: Tenant,
    pub role: Role,
    pub name: String,
    pub subject: Option<String>,
    /// Whether it may name other users than its subject.
    pub any_subject: bool,
    pub created: Time,
    pub expires: Option<Time>,
    pub revoked: Option<Time>,
}

impl Store {
    /// With its row of the ledger, if somebody makes it: both or neither.
    pub async fn add_key(&self, key: NewKey, entry: Option<Entry>) -> Result<Key> {
        self.write(move |tx| {
            tx.execute(
                "INSERT INTO keys (id, tenant, role, name, subject, any_subject, digest, created, expires)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                params![
                    Col(&key.id),
                    Col(&key.tenant),
                    Col(&key.role),
                    key.name,
                    key.subject,
                    key.any_subject,
                    key.digest,
                    Col(&key.created),
                    key.expires.as_ref().map(Col),
                ],
            )?;
            entry.map_or(Ok(()), |entry| tx.append(entry))?;
            Ok(read(tx.reads(), "id = ?", &Col(&key.id))?)
        })
        .await
        .and_then(there)
    }

    /// Of one tenant or of all, oldest first.
    pub async fn keys(&self, tenant: Option<&Tenant>) -> Result<Vec<Key>> {
        let tenant = tenant.cloned();
        self.read(move |db| {
            let sql = "SELECT * FROM keys WHERE ?1 IS NULL OR tenant = ?1 ORDER BY created, id";
            let mut statement = db.prepare_cached(sql)?;
            let rows = statement.query_map([tenant.as_ref().map(Col)], row)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
        .await
    }

    pub async fn key(&self, digest: &[u8; 32]) -> Result<Option<Key>> {
        let digest = *digest;
        self.glance(move |db| Ok(read(db, "digest = ?", &digest)?)).await
    }

    pub async fn key_of(&self, id: KeyId) -> Result<Option<Key>> {
        self.glance(move |db| Ok(read(db, "id = ?", &Col(&id))?)).await
    }

    /// The first time counts, and has a row of the ledger. `None`: there is no such key.
    pub async fn revoke_key(&self, id: KeyId, entry: Entry) -> Result<Option<Key>> {
        self.write(move |tx| {
            let sql = "UPDATE keys SET revoked = ? WHERE id = ? AND revoked IS NULL";
            if tx.execute(sql, params![Col(&entry.at), Col(&id)])? == 1 {
                tx.append(entry)?;
            }
            Ok(read(tx.reads(), "id = ?", &Col(&id))?)
        })
        .await
    }
}

fn there(key: Option<Key>) -> Result<Key> {
    key.ok_or_else(|| crate::Error::Corrupt("a key that was just written is not there".into()))
}

fn read(db: &Connection, which: &str, value: &dyn rusqlite::ToSql) -> rusqlite::Result<Option<Key>> {
    db.prepare_cached(&format!("SELECT * FROM keys WHERE {which}"))?.query_row([value], row).optional()
}

fn row(row: &Row<'_>) -> rusqlite::Result<Key> {
    Ok(Key {
        id: get(row, "id")?,
        tenant: get(row, "tenant")?,
        role: get(row, "role")?,
        name: row.get("name")?,
        subject: row.get("subject")?,
        any_subject: row.get("any_subject")?,
        created: get(row, "created")?,
        expires: maybe(row, "expires")?,
        revoked: maybe(row, "revoked")?,
    })
}
