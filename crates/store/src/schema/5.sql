-- How long things are kept. A small output is in the row of its call or task: those that said something, by when they ended.
CREATE INDEX calls_said ON calls (ended) WHERE length(stdout) > 0 OR length(stderr) > 0;
CREATE INDEX tasks_said ON tasks (ended) WHERE length(stdout) > 0 OR length(stderr) > 0;

-- What a ledger lacks at its beginning, and what the last row of that was.
CREATE TABLE ledger_dropped (
    tenant TEXT PRIMARY KEY, seq INTEGER NOT NULL, hash BLOB NOT NULL, rows INTEGER NOT NULL, at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- When something was made from a template or a snapshot for the last time.
CREATE TABLE uses (kind TEXT NOT NULL, name TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (kind, name))
    STRICT, WITHOUT ROWID;
