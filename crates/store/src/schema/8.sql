-- Of a snapshot: what it is called, what its front keeps of it (JSON), and whether a build made it for itself alone.
ALTER TABLE snapshots ADD COLUMN name TEXT;
ALTER TABLE snapshots ADD COLUMN about TEXT;
ALTER TABLE snapshots ADD COLUMN built INTEGER NOT NULL DEFAULT 0;
CREATE INDEX snapshots_named ON snapshots (tenant, name, id) WHERE name IS NOT NULL;

-- What tenants build for themselves: a template is a name, a build is one try to make it, and a tag leads from the one to the other.
CREATE TABLE own_templates (
    tenant TEXT NOT NULL, id BLOB NOT NULL, name TEXT NOT NULL, created INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX own_templates_named ON own_templates (tenant, name);

-- `about` is what was asked, `made` what sandboxes of it begin with, `log` what was said: the front's JSON, all three.
CREATE TABLE builds (
    tenant TEXT NOT NULL, id BLOB NOT NULL, template BLOB NOT NULL, state TEXT NOT NULL, tags TEXT NOT NULL,
    about TEXT NOT NULL, made TEXT, snapshot BLOB, reason TEXT, step TEXT, log TEXT,
    created INTEGER NOT NULL, ended INTEGER,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX builds_of ON builds (tenant, template, id);
CREATE INDEX builds_by_snapshot ON builds (tenant, snapshot) WHERE snapshot IS NOT NULL;

CREATE TABLE build_tags (
    tenant TEXT NOT NULL, template BLOB NOT NULL, tag TEXT NOT NULL, build BLOB NOT NULL, created INTEGER NOT NULL,
    PRIMARY KEY (tenant, template, tag)
) STRICT, WITHOUT ROWID;

-- What a step of a build left, by a digest of all steps up to it.
CREATE TABLE build_layers (
    tenant TEXT NOT NULL, digest BLOB NOT NULL, snapshot BLOB NOT NULL, about TEXT NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (tenant, digest)
) STRICT, WITHOUT ROWID;
CREATE INDEX build_layers_by_snapshot ON build_layers (tenant, snapshot);
