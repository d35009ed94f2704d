//! The tables, and how a connection is opened.

use std::{fs::OpenOptions, os::unix::fs::OpenOptionsExt, path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags};

use crate::{Durability, Error, Result};

/// How long a statement waits for another process that holds the database.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// What takes a database from each version to the next; an empty one is version 0. What is here is never changed: there are
/// databases that have run it.
const STEPS: &[&str] = &[
    include_str!("schema/1.sql"),
    include_str!("schema/2.sql"),
    include_str!("schema/3.sql"),
    include_str!("schema/4.sql"),
    include_str!("schema/5.sql"),
    include_str!("schema/6.sql"),
    include_str!("schema/7.sql"),
    include_str!("schema/8.sql"),
    include_str!("schema/9.sql"),
    include_str!("schema/10.sql"),
    include_str!("schema/11.sql"),
    include_str!("schema/12.sql"),
];

/// The connection that writes. A new database has its first tables then. Of an older one the journal comes first: what is in
/// there was written for the tables of that time.
pub(crate) fn open_writer(path: &Path, durability: Durability) -> Result<Connection> {
    // Ours alone, before SQLite makes it as the umask says. It gives the files beside it the same mode.
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let mut db = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE, 4096)?;
    db.pragma_update(None, "journal_mode", "wal")?;
    db.pragma_update(
        None,
        "synchronous",
        match durability {
            Durability::Kill => "normal",
            Durability::Full => "full",
        },
    )?;
    // Checkpoints have a thread of their own: no commit waits for one.
    db.pragma_update(None, "wal_autocheckpoint", 0)?;
    if version(&db)? == 0 {
        step(&mut db, 0)?;
    }
    Ok(db)
}

/// One that can only read.
pub(crate) fn open_reader(path: &Path) -> Result<Connection> {
    let db = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY, 512)?;
    db.pragma_update(None, "query_only", true)?;
    Ok(db)
}

/// One that moves what was committed from the log of the database into the database.
pub(crate) fn open_checkpointer(path: &Path) -> Result<Connection> {
    open(path, OpenFlags::SQLITE_OPEN_READ_WRITE, 512)
}

/// With so many KiB for pages. Each connection is used by one thread at a time, so SQLite need not lock it; and a path is
/// never read as a URI.
fn open(path: &Path, access: OpenFlags, cache: i64) -> Result<Connection> {
    let db = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    db.busy_timeout(PATIENCE)?;
    db.pragma_update(None, "cache_size", -cache)?;
    db.set_prepared_statement_cache_capacity(64);
    Ok(db)
}

/// What `user_version` of the database says.
fn version(db: &Connection) -> Result<usize> {
    let found: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0))?;
    let known = usize::try_from(found).ok().filter(|version| *version <= STEPS.len());
    known.ok_or(Error::Schema { found, known: STEPS.len() as i64 })
}

/// From whichever version to the newest. Each step is done as a whole or not at all.
pub(crate) fn migrate(db: &mut Connection) -> Result<()> {
    for from in version(db)?..STEPS.len() {
        step(db, from)?;
    }
    Ok(())
}

fn step(db: &mut Connection, from: usize) -> Result<()> {
    let transaction = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    transaction.execute_batch(STEPS[from])?;
    transaction.pragma_update(None, "user_version", from as i64 + 1)?;
    Ok(transaction.commit()?)
}
