//! Secrets of the server's own, such as what signs its links. They never leave it.

use cabana_model::SandboxId;
use rusqlite::params;

use crate::{Result, Store, desk::Tx};

impl Store {
    /// The one of this name. The first that was drawn stays.
    pub async fn secret(&self, name: &'static str, drawn: [u8; 32]) -> Result<[u8; 32]> {
        self.write(move |tx| first(tx, name, drawn)).await
    }

    /// What the links to a sandbox are marked with. The first that was drawn stays, until it is changed.
    pub async fn link_mark(&self, physical: &SandboxId, drawn: [u8; 32]) -> Result<[u8; 32]> {
        let name = mark(physical);
        self.write(move |tx| first(tx, &name, drawn)).await
    }

    /// Links with another mark are none any more.
    pub async fn change_link_mark(&self, physical: &SandboxId, drawn: [u8; 32]) -> Result<()> {
        let name = mark(physical);
        let sql = "INSERT OR REPLACE INTO secrets (name, value) VALUES (?, ?)";
        self.write(move |tx| tx.execute(sql, params![name, drawn]).map(drop)).await
    }
}

fn first(tx: &mut Tx<'_>, name: &str, drawn: [u8; 32]) -> Result<[u8; 32]> {
    tx.execute("INSERT OR IGNORE INTO secrets (name, value) VALUES (?, ?)", params![name, drawn])?;
    let mut statement = tx.reads().prepare_cached("SELECT value FROM secrets WHERE name = ?")?;
    Ok(statement.query_row([name], |row| row.get(0))?)
}

fn mark(physical: &SandboxId) -> String {
    format!("links {physical}")
}

/// Goes with its sandbox.
pub(crate) fn forget_mark(tx: &mut Tx<'_>, physical: &SandboxId) -> Result<()> {
    tx.execute("DELETE FROM secrets WHERE name = ?", params![mark(physical)]).map(drop)
}
