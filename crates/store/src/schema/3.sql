-- Quotas, what is held against them, and usage by day.

-- Of a tenant (the key is empty then) or of one of its keys. JSON.
CREATE TABLE quotas (
    tenant TEXT NOT NULL, key BLOB NOT NULL, quota TEXT NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;

-- Who made it; what its files may take, or NULL without a limit; and what they took when they were last measured.
ALTER TABLE sandboxes ADD COLUMN key BLOB;
ALTER TABLE sandboxes ADD COLUMN disk INTEGER;
ALTER TABLE sandboxes ADD COLUMN stored INTEGER NOT NULL DEFAULT 0;
UPDATE sandboxes SET disk = json_extract(spec, '$.sandbox.limits.disk')
    WHERE json_valid(spec) AND json_extract(spec, '$.sandbox.limits.disk') < 4398046511104;

-- As much as its sandbox took when it was taken.
ALTER TABLE snapshots ADD COLUMN stored INTEGER NOT NULL DEFAULT 0;

-- Sums, by tenant (the key is empty then) and by key: a tenant may have a hundred thousand sandboxes, and each claim asks.
-- Triggers keep them, so no statement can forget to.
CREATE TABLE holdings (
    tenant TEXT NOT NULL, key BLOB NOT NULL,
    sandboxes INTEGER NOT NULL, disk INTEGER NOT NULL, boundless INTEGER NOT NULL, stored INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
INSERT INTO holdings
    SELECT tenant, x'', count(*), coalesce(sum(disk), 0), sum(disk IS NULL), 0 FROM sandboxes GROUP BY tenant;

CREATE TRIGGER sandboxes_held AFTER INSERT ON sandboxes BEGIN
    INSERT INTO holdings VALUES (new.tenant, x'', 1, coalesce(new.disk, 0), new.disk IS NULL, new.stored)
        ON CONFLICT (tenant, key) DO UPDATE SET sandboxes = sandboxes + 1, disk = disk + excluded.disk,
            boundless = boundless + excluded.boundless, stored = stored + excluded.stored;
    INSERT INTO holdings SELECT new.tenant, new.key, 1, coalesce(new.disk, 0), new.disk IS NULL, new.stored
        WHERE new.key IS NOT NULL
        ON CONFLICT (tenant, key) DO UPDATE SET sandboxes = sandboxes + 1, disk = disk + excluded.disk,
            boundless = boundless + excluded.boundless, stored = stored + excluded.stored;
END;
CREATE TRIGGER sandboxes_changed AFTER UPDATE OF disk, stored ON sandboxes BEGIN
    UPDATE holdings SET disk = disk - coalesce(old.disk, 0) + coalesce(new.disk, 0),
            boundless = boundless - (old.disk IS NULL) + (new.disk IS NULL), stored = stored - old.stored + new.stored
        WHERE tenant = new.tenant AND key IN (x'', coalesce(new.key, x''));
END;
CREATE TRIGGER sandboxes_gone AFTER DELETE ON sandboxes BEGIN
    UPDATE holdings SET sandboxes = sandboxes - 1, disk = disk - coalesce(old.disk, 0),
            boundless = boundless - (old.disk IS NULL), stored = stored - old.stored
        WHERE tenant = old.tenant AND key IN (x'', coalesce(old.key, x''));
END;

-- Snapshots are the tenant's alone.
CREATE TRIGGER snapshots_held AFTER INSERT ON snapshots WHEN new.stored > 0 BEGIN
    INSERT INTO holdings VALUES (new.tenant, x'', 0, 0, 0, new.stored)
        ON CONFLICT (tenant, key) DO UPDATE SET stored = stored + excluded.stored;
END;
CREATE TRIGGER snapshots_gone AFTER DELETE ON snapshots WHEN old.stored > 0 BEGIN
    UPDATE holdings SET stored = stored - old.stored WHERE tenant = old.tenant AND key = x'';
END;

-- What the ledger says, by day and verb, up to the row that was counted last.
CREATE TABLE usage (
    tenant TEXT NOT NULL, day TEXT NOT NULL, verb TEXT NOT NULL,
    calls INTEGER NOT NULL, failed INTEGER NOT NULL, ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, day, verb)
) STRICT, WITHOUT ROWID;
CREATE TABLE usage_counted (tenant TEXT PRIMARY KEY, seq INTEGER NOT NULL) STRICT, WITHOUT ROWID;
