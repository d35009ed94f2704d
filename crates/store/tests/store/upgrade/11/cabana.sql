PRAGMA user_version = 11;
CREATE TABLE build_layers (
    tenant TEXT NOT NULL, digest BLOB NOT NULL, snapshot BLOB NOT NULL, about TEXT NOT NULL, used INTEGER NOT NULL,
    PRIMARY KEY (tenant, digest)
) STRICT, WITHOUT ROWID;
CREATE TABLE build_tags (
    tenant TEXT NOT NULL, template BLOB NOT NULL, tag TEXT NOT NULL, build BLOB NOT NULL, created INTEGER NOT NULL,
    PRIMARY KEY (tenant, template, tag)
) STRICT, WITHOUT ROWID;
CREATE TABLE builds (
    tenant TEXT NOT NULL, id BLOB NOT NULL, template BLOB NOT NULL, state TEXT NOT NULL, tags TEXT NOT NULL,
    about TEXT NOT NULL, made TEXT, snapshot BLOB, reason TEXT, step TEXT, log TEXT,
    created INTEGER NOT NULL, ended INTEGER, key BLOB,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE calls (
    tenant TEXT NOT NULL, id BLOB NOT NULL, key BLOB NOT NULL, sandbox TEXT, verb TEXT NOT NULL, front TEXT NOT NULL,
    digest BLOB NOT NULL, once BLOB, argv TEXT NOT NULL, reserved INTEGER NOT NULL,
    ended INTEGER, outcome TEXT, code TEXT, answer BLOB, stdout BLOB, stderr BLOB,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE deliveries (
    webhook BLOB NOT NULL, number INTEGER NOT NULL, event TEXT NOT NULL, type TEXT NOT NULL, body TEXT NOT NULL,
    made INTEGER NOT NULL, attempts INTEGER NOT NULL, due INTEGER NOT NULL, said TEXT, ended INTEGER,
    PRIMARY KEY (webhook, number)
) STRICT, WITHOUT ROWID;
CREATE TABLE folded (record INTEGER NOT NULL) STRICT;
CREATE TABLE holdings (
    tenant TEXT NOT NULL, key BLOB NOT NULL,
    sandboxes INTEGER NOT NULL, disk INTEGER NOT NULL, boundless INTEGER NOT NULL, stored INTEGER NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE keys (
    id BLOB PRIMARY KEY, tenant TEXT NOT NULL, role TEXT NOT NULL, name TEXT NOT NULL, subject TEXT,
    digest BLOB NOT NULL UNIQUE, created INTEGER NOT NULL, expires INTEGER, revoked INTEGER
) STRICT, WITHOUT ROWID;
CREATE TABLE ledger (
    tenant TEXT NOT NULL, seq INTEGER NOT NULL, row TEXT NOT NULL, hash BLOB NOT NULL,
    PRIMARY KEY (tenant, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE ledger_dropped (
    tenant TEXT PRIMARY KEY, seq INTEGER NOT NULL, hash BLOB NOT NULL, rows INTEGER NOT NULL, at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE own_templates (
    tenant TEXT NOT NULL, id BLOB NOT NULL, name TEXT NOT NULL, created INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE quotas (
    tenant TEXT NOT NULL, key BLOB NOT NULL, quota TEXT NOT NULL,
    PRIMARY KEY (tenant, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE recorded (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE sandboxes (
    physical TEXT PRIMARY KEY, tenant TEXT NOT NULL, id TEXT NOT NULL,
    scheme TEXT, value TEXT, app TEXT, chat TEXT, scope TEXT,
    spec TEXT NOT NULL, state TEXT NOT NULL, why TEXT NOT NULL,
    created INTEGER NOT NULL, changed INTEGER NOT NULL, active INTEGER NOT NULL, version INTEGER NOT NULL, phase TEXT, started INTEGER, tries INTEGER NOT NULL DEFAULT 0, trouble TEXT, due INTEGER, lease_token BLOB, lease_holder TEXT, lease_until INTEGER, key BLOB, disk INTEGER, stored INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, id), UNIQUE (tenant, scheme, value)
) STRICT;
CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE snapshots (
    tenant TEXT NOT NULL, id BLOB NOT NULL, physical BLOB NOT NULL UNIQUE, sandbox TEXT NOT NULL,
    state TEXT NOT NULL, created INTEGER NOT NULL, stored INTEGER NOT NULL DEFAULT 0, name TEXT, about TEXT, built INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE tasks (
    tenant TEXT NOT NULL, id BLOB NOT NULL, call BLOB NOT NULL, key BLOB NOT NULL, sandbox TEXT NOT NULL,
    argv TEXT NOT NULL, state TEXT NOT NULL, exit TEXT, stdout BLOB, stderr BLOB,
    started INTEGER NOT NULL, ended INTEGER, about TEXT,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE TABLE told (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE usage (
    tenant TEXT NOT NULL, day TEXT NOT NULL, verb TEXT NOT NULL,
    calls INTEGER NOT NULL, failed INTEGER NOT NULL, ms INTEGER NOT NULL,
    PRIMARY KEY (tenant, day, verb)
) STRICT, WITHOUT ROWID;
CREATE TABLE usage_counted (tenant TEXT PRIMARY KEY, seq INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE uses (kind TEXT NOT NULL, name TEXT NOT NULL, at INTEGER NOT NULL, PRIMARY KEY (kind, name))
    STRICT, WITHOUT ROWID;
CREATE TABLE volumes (
    tenant TEXT NOT NULL, name TEXT NOT NULL, physical BLOB NOT NULL UNIQUE, state TEXT NOT NULL, created INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE webhooks (
    tenant TEXT NOT NULL, id BLOB NOT NULL, url TEXT NOT NULL, secret TEXT NOT NULL, events TEXT NOT NULL,
    created INTEGER NOT NULL, disabled INTEGER, why TEXT,
    done INTEGER NOT NULL, delivered INTEGER NOT NULL, dropped INTEGER NOT NULL, key BLOB,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX build_layers_by_snapshot ON build_layers (tenant, snapshot);
CREATE INDEX builds_by_snapshot ON builds (tenant, snapshot) WHERE snapshot IS NOT NULL;
CREATE INDEX builds_of ON builds (tenant, template, id);
CREATE UNIQUE INDEX calls_once ON calls (tenant, once) WHERE once IS NOT NULL;
CREATE INDEX calls_once_age ON calls (reserved) WHERE once IS NOT NULL;
CREATE INDEX calls_open ON calls (id) WHERE ended IS NULL;
CREATE INDEX calls_said ON calls (ended) WHERE length(stdout) > 0 OR length(stderr) > 0;
CREATE INDEX calls_sandbox ON calls (tenant, sandbox, id) WHERE sandbox IS NOT NULL;
CREATE UNIQUE INDEX own_templates_named ON own_templates (tenant, name);
CREATE INDEX sandboxes_begun ON sandboxes (tenant, coalesce(started, created), id);
CREATE INDEX sandboxes_chat ON sandboxes (tenant, app, chat, created, id) WHERE app IS NOT NULL;
CREATE INDEX sandboxes_due ON sandboxes (due, physical, tenant) WHERE due IS NOT NULL;
CREATE INDEX sandboxes_newest ON sandboxes (tenant, created, id);
CREATE INDEX sandboxes_restless ON sandboxes (physical) WHERE state NOT IN ('stopped', 'archived');
CREATE INDEX sandboxes_state ON sandboxes (tenant, state, created, id);
CREATE INDEX snapshots_named ON snapshots (tenant, name, id) WHERE name IS NOT NULL;
CREATE INDEX snapshots_sandbox ON snapshots (tenant, sandbox, id);
CREATE INDEX tasks_open ON tasks (id) WHERE ended IS NULL;
CREATE INDEX tasks_said ON tasks (ended) WHERE length(stdout) > 0 OR length(stderr) > 0;
CREATE INDEX tasks_sandbox ON tasks (tenant, sandbox, id);
INSERT INTO calls VALUES ('one', x'0198000000007000800000000000000b', x'01980000000070008000000000000001', 'sandbox0number1', 'exec', 'rest', x'0101010101010101010101010101010101010101010101010101010101010101', x'0101010101010101010101010101010101010101010101010101010101010101', '["echo","é\n\""]', 1700000004000000, 1700000005000000, 'answered', NULL, x'7b2265786974223a307d', x'73616964', x'ff');
INSERT INTO calls VALUES ('one', x'0198000000007000800000000000000c', x'01980000000070008000000000000001', 'sandbox0number1', 'exec', 'rest', x'0101010101010101010101010101010101010101010101010101010101010101', x'0202020202020202020202020202020202020202020202020202020202020202', '["echo","é\n\""]', 1700000004000000, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO folded VALUES (12);
INSERT INTO holdings VALUES ('one', x'', 2, 0, 2, 0);
INSERT INTO holdings VALUES ('one', x'01a1edf7237776f0b3d1a21479aa6313', 1, 0, 1, 0);
INSERT INTO holdings VALUES ('one', x'01a1edf723787762adad4408d0bf4aaf', 1, 0, 1, 0);
INSERT INTO keys VALUES (x'01980000000070008000000000000001', 'one', '"admin"', 'a name', 'somebody', x'0101010101010101010101010101010101010101010101010101010101010101', 1700000001000000, 2700000000000000, NULL);
INSERT INTO ledger VALUES ('one', 1, '{"argv":["echo","é\n\""],"call":"call_0198000000007000800000000000000b","duration_ms":3,"exit":0,"input_digest":"0101010101010101010101010101010101010101010101010101010101010101","key":"key_01980000000070008000000000000001","outcome":"answered","output_digest":null,"policy":null,"prev":"0000000000000000000000000000000000000000000000000000000000000000","sandbox":"sandbox0number1","seq":1,"tenant":"one","time":"2023-11-14T22:13:25Z","verb":"exec"}', x'b4c54c4cc1f2f5d27dc62e3bce9ab77eaca1205e220dd94bd3bb59039c6b559d');
INSERT INTO ledger VALUES ('one', 2, '{"argv":["echo","é\n\""],"call":"call_0198000000007000800000000000000b","duration_ms":3,"exit":0,"input_digest":"0101010101010101010101010101010101010101010101010101010101010101","key":"key_01980000000070008000000000000001","outcome":"answered","output_digest":null,"policy":null,"prev":"b4c54c4cc1f2f5d27dc62e3bce9ab77eaca1205e220dd94bd3bb59039c6b559d","sandbox":"sandbox0number1","seq":2,"tenant":"one","time":"2023-11-14T22:13:25Z","verb":"exec"}', x'86b09585289dbf36db81621a5827a0cbf9cbd58d4bd8bd1efec6ae382c981c3e');
INSERT INTO recorded VALUES ('one', 2122);
INSERT INTO sandboxes VALUES ('sandbox0number11', 'one', 'sandbox0number1', 'chat', 'app-user-chat 0', 'app', 'chat 0', '{"scheme":"chat","value":"app-user-chat 0","chat":["app","chat 0"]}', '{"a":1}', 'running', 'asked for', 1700000002000000, 1700000003000000, 1700000003000000, 2, NULL, 1700000003000000, 0, NULL, NULL, NULL, NULL, NULL, x'01a1edf7237776f0b3d1a21479aa6313', NULL, 0);
INSERT INTO sandboxes VALUES ('sandbox0number12', 'one', 'sandbox0number2', NULL, NULL, NULL, NULL, NULL, '{"a":1}', 'provisioning', 'claimed', 1700000002000000, 1700000002000000, 1700000002000000, 1, 'make', NULL, 0, NULL, NULL, NULL, NULL, NULL, x'01a1edf723787762adad4408d0bf4aaf', NULL, 0);
INSERT INTO secrets VALUES ('links', x'0707070707070707070707070707070707070707070707070707070707070707');
INSERT INTO snapshots VALUES ('one', x'0198000000007000800000000000001f', x'01980000000070008000000000000020', 'sandbox0number1', 'making', 1700000008000000, 0, NULL, NULL, 0);
INSERT INTO tasks VALUES ('one', x'01980000000070008000000000000015', x'0198000000007000800000000000000b', x'01980000000070008000000000000001', 'sandbox0number1', '["sleep","1"]', 'succeeded', '{"exit_code":0}', NULL, NULL, 1700000006000000, 1700000007000000, NULL);
INSERT INTO tasks VALUES ('one', x'01980000000070008000000000000016', x'0198000000007000800000000000000b', x'01980000000070008000000000000001', 'sandbox0number1', '["sleep","1"]', 'running', NULL, NULL, NULL, 1700000006000000, NULL, NULL);
CREATE TRIGGER call_answered AFTER UPDATE OF answer ON calls BEGIN
    UPDATE recorded SET bytes = bytes - coalesce(length(old.answer), 0) + coalesce(length(new.answer), 0)
        WHERE tenant = new.tenant;
END;
CREATE TRIGGER call_forgotten AFTER DELETE ON calls BEGIN
    UPDATE recorded SET bytes = bytes - length(CAST(old.argv AS BLOB)) - coalesce(length(old.answer), 0) - 256
        WHERE tenant = old.tenant;
END;
CREATE TRIGGER call_reserved AFTER INSERT ON calls BEGIN
    INSERT INTO recorded VALUES (new.tenant, length(CAST(new.argv AS BLOB)) + coalesce(length(new.answer), 0) + 256)
        ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER ledger_grew AFTER INSERT ON ledger BEGIN
    INSERT INTO recorded VALUES (new.tenant, length(CAST(new.row AS BLOB)) + 64)
        ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER ledger_shrank AFTER DELETE ON ledger BEGIN
    UPDATE recorded SET bytes = bytes - length(CAST(old.row AS BLOB)) - 64 WHERE tenant = old.tenant;
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
CREATE TRIGGER sandboxes_held AFTER INSERT ON sandboxes BEGIN
    INSERT INTO holdings VALUES (new.tenant, x'', 1, coalesce(new.disk, 0), new.disk IS NULL, new.stored)
        ON CONFLICT (tenant, key) DO UPDATE SET sandboxes = sandboxes + 1, disk = disk + excluded.disk,
            boundless = boundless + excluded.boundless, stored = stored + excluded.stored;
    INSERT INTO holdings SELECT new.tenant, new.key, 1, coalesce(new.disk, 0), new.disk IS NULL, new.stored
        WHERE new.key IS NOT NULL
        ON CONFLICT (tenant, key) DO UPDATE SET sandboxes = sandboxes + 1, disk = disk + excluded.disk,
            boundless = boundless + excluded.boundless, stored = stored + excluded.stored;
END;
CREATE TRIGGER snapshots_gone AFTER DELETE ON snapshots WHEN old.stored > 0 BEGIN
    UPDATE holdings SET stored = stored - old.stored WHERE tenant = old.tenant AND key = x'';
END;
CREATE TRIGGER snapshots_held AFTER INSERT ON snapshots WHEN new.stored > 0 BEGIN
    INSERT INTO holdings VALUES (new.tenant, x'', 0, 0, 0, new.stored)
        ON CONFLICT (tenant, key) DO UPDATE SET stored = stored + excluded.stored;
END;
CREATE TRIGGER task_added AFTER INSERT ON tasks BEGIN
    INSERT INTO recorded VALUES (new.tenant,
            length(CAST(new.argv AS BLOB)) + coalesce(length(CAST(new.about AS BLOB)), 0) + 256)
        ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER task_forgotten AFTER DELETE ON tasks BEGIN
    UPDATE recorded SET bytes = bytes - length(CAST(old.argv AS BLOB)) - coalesce(length(CAST(old.about AS BLOB)), 0) - 256
        WHERE tenant = old.tenant;
END;
