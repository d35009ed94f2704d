-- Ids grow with time, so each table and index whose key ends in one is written at its end. A table without rowids is its
-- own index: a lookup by tenant and id, and the list of a tenant, cost no second tree. The partial indexes hold what is
-- open or still has an idempotency key, which is little.

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
