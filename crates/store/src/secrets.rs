//! Secrets of the server's own, such as what signs its links. They never leave it.

use cabana_model::SandboxId;
use rusqlite::Connection;

use crate::{Result, Store};

impl Store {
    /// The one of this name. The first that was drawn stays.
    pub async fn secret(&self, name: &'static str, drawn: [u8; 32]) -> Result<[u8; 32]> {
        self.write(move |db| first(db, name, drawn)).await
    }

    /// What the links to a sandbox are marked with. The first that was drawn stays, until it is changed.
    pub async fn link_mark(&self, physical: &SandboxId, drawn: [u8; 32]) -> Result<[u8; 32]> {
        let name = mark(physical);
        self.write(move |db| first(db, &name, drawn)).await
    }

    /// Links with another mark are none any more.
    pub async fn change_link_mark(&self, physical: &SandboxId, drawn: [u8; 32]) -> Result<()> {
        let name = mark(physical);
        self.write(move |db| {
            let sql = "INSERT OR REPLACE INTO secrets (name, value) VALUES (?, ?)";
            db.prepare_cached(sql)?.execute((&name, drawn))?;
            Ok(())
        })
        .await
    }
}

fn first(db: &Connection, name: &str, drawn: [u8; 32]) -> Result<[u8; 32]> {
    db.prepare_cached("INSERT OR IGNORE INTO secrets (name, value) VALUES (?, ?)")?.execute((name, drawn))?;
    Ok(db.prepare_cached("SELECT value FROM secrets WHERE name = ?")?.query_row([name], |row| row.get(0))?)
}

fn mark(physical: &SandboxId) -> String {
    format!("links {physical}")
}

/// Goes with its sandbox.
pub(crate) fn forget_mark(db: &Connection, physical: &SandboxId) -> rusqlite::Result<usize> {
    db.prepare_cached("DELETE FROM secrets WHERE name = ?")?.execute([mark(physical)])
}
