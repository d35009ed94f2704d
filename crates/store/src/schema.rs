//! The tables, and how a connection is opened.

use std::{fs::OpenOptions, os::unix::fs::OpenOptionsExt, path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags};

use crate::{Durability, Error, Result};

/// What `user_version` of the database says. There is one so far.
const VERSION: i64 = 1;

/// How long a statement waits for another process that holds the database.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

// Ids grow with time, so each table and index whose key ends in one is written at its end. A table without rowids is its
// own index: a lookup by tenant and id, and the list of a tenant, cost no second tree. The partial indexes hold what is
// open or still has an idempotency key, which is little.
const TABLES: &str = "
CREATE TABLE keys (
    id BLOB PRIMARY KEY, tenant TEXT NOT NULL, role TEXT NOT NULL, name TEXT NOT NULL, subject TEXT,
    digest BLOB NOT NULL UNIQUE, created INTEGER NOT NULL, expires INTEGER, revoked INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE sandboxes (
    physical TEXT PRIMARY KEY, tenant TEXT NOT NULL, id TEXT NOT NULL,
    scheme TEXT, value TEXT, app TEXT, chat TEXT, scope TEXT,
    spec TEXT NOT NULL, state TEXT NOT NULL, why TEXT NOT NULL,
    created INTEGER NOT NULL, changed INTEGER NOT NULL, active INTEGER NOT NULL, version INTEGER NOT NULL,
    UNIQUE (tenant, id), UNIQUE (tenant, scheme, value)
) STRICT;
CREATE INDEX sandboxes_newest ON sandboxes (tenant, created, id);
CREATE INDEX sandboxes_chat ON sandboxes (tenant, app, chat, created, id) WHERE app IS NOT NULL;

CREATE TABLE calls (
    tenant TEXT NOT NULL, id BLOB NOT NULL, key BLOB NOT NULL, sandbox TEXT, verb TEXT NOT NULL, front TEXT NOT NULL,
    digest BLOB NOT NULL, once BLOB, argv TEXT NOT NULL, reserved INTEGER NOT NULL,
    ended INTEGER, outcome TEXT, code TEXT, answer BLOB, stdout BLOB, stderr BLOB,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX calls_once ON calls (tenant, once) WHERE once IS NOT NULL;
CREATE INDEX calls_once_age ON calls (reserved) WHERE once IS NOT NULL;
CREATE INDEX calls_sandbox ON calls (tenant, sandbox, id) WHERE sandbox IS NOT NULL;
CREATE INDEX calls_open ON calls (id) WHERE ended IS NULL;

CREATE TABLE tasks (
    tenant TEXT NOT NULL, id BLOB NOT NULL, call BLOB NOT NULL, key BLOB NOT NULL, sandbox TEXT NOT NULL,
    argv TEXT NOT NULL, state TEXT NOT NULL, exit TEXT, stdout BLOB, stderr BLOB,
    started INTEGER NOT NULL, ended INTEGER,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX tasks_sandbox ON tasks (tenant, sandbox, id);
CREATE INDEX tasks_open ON tasks (id) WHERE ended IS NULL;

CREATE TABLE snapshots (
    tenant TEXT NOT NULL, id BLOB NOT NULL, physical BLOB NOT NULL UNIQUE, sandbox TEXT NOT NULL,
    state TEXT NOT NULL, created INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX snapshots_sandbox ON snapshots (tenant, sandbox, id);

-- The last record of the journal that is in the database.
CREATE TABLE folded (record INTEGER NOT NULL) STRICT;
INSERT INTO folded VALUES (0);

-- The row is the very text that was hashed.
CREATE TABLE ledger (
    tenant TEXT NOT NULL, seq INTEGER NOT NULL, row TEXT NOT NULL, hash BLOB NOT NULL,
    PRIMARY KEY (tenant, seq)
) STRICT, WITHOUT ROWID;
";

/// The connection that writes. Makes the tables of a new database.
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
    migrate(&mut db)?;
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

fn migrate(db: &mut Connection) -> Result<()> {
    let transaction = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    match transaction.pragma_query_value(None, "user_version", |row| row.get(0))? {
        0 => {
            transaction.execute_batch(TABLES)?;
            transaction.pragma_update(None, "user_version", VERSION)?;
        }
        VERSION => {}
        found => return Err(Error::Schema { found, known: VERSION }),
    }
    Ok(transaction.commit()?)
}
