//! Secrets of the server's own, such as what signs its links. They never leave it.

use crate::{Result, Store};

impl Store {
    /// The one of this name. The first that was drawn stays.
    pub async fn secret(&self, name: &'static str, drawn: [u8; 32]) -> Result<[u8; 32]> {
        self.write(move |tx| {
            tx.execute("INSERT OR IGNORE INTO secrets (name, value) VALUES (?, ?)", &[&name, &drawn])?;
            let mut statement = tx.reads().prepare_cached("SELECT value FROM secrets WHERE name = ?")?;
            Ok(statement.query_row([name], |row| row.get(0))?)
        })
        .await
    }
}
