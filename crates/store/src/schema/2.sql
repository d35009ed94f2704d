-- What a sandbox's operation has to do next, how often that failed, and when somebody has to look at it again.
ALTER TABLE sandboxes ADD COLUMN phase TEXT;
ALTER TABLE sandboxes ADD COLUMN started INTEGER;
ALTER TABLE sandboxes ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN trouble TEXT;
ALTER TABLE sandboxes ADD COLUMN due INTEGER;
-- Whose it is for a while: nobody else changes its shape.
ALTER TABLE sandboxes ADD COLUMN lease_token BLOB;
ALTER TABLE sandboxes ADD COLUMN lease_holder TEXT;
ALTER TABLE sandboxes ADD COLUMN lease_until INTEGER;
UPDATE sandboxes SET phase = 'make' WHERE state = 'provisioning';
UPDATE sandboxes SET phase = 'destroy' WHERE state = 'deleting';
UPDATE sandboxes SET started = changed WHERE state IN ('running', 'paused');
UPDATE sandboxes SET due = 0;

-- Few are due, and few do not rest: a look for them costs nothing, however many there are.
CREATE INDEX sandboxes_due ON sandboxes (due) WHERE due IS NOT NULL;
CREATE INDEX sandboxes_restless ON sandboxes (physical) WHERE state NOT IN ('stopped', 'archived');
CREATE INDEX sandboxes_state ON sandboxes (tenant, state, created, id);

-- What the last server was told, where the next one has to know whether that changed.
CREATE TABLE told (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
