-- What is recorded of a tenant's calls, in bytes: rows of its ledger, and those of its calls and tasks but for what they said. Triggers
-- keep the sum, so no statement can forget to. To each row some bytes are added, for its numbers and its place in the indexes.
CREATE TABLE recorded (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO recorded SELECT tenant, sum(bytes) FROM (
    SELECT tenant, length(CAST(row AS BLOB)) + 64 AS bytes FROM ledger
    UNION ALL SELECT tenant, length(CAST(argv AS BLOB)) + coalesce(length(answer), 0) + 256 FROM calls
    UNION ALL SELECT tenant, length(CAST(argv AS BLOB)) + coalesce(length(CAST(about AS BLOB)), 0) + 256 FROM tasks
) GROUP BY tenant;

CREATE TRIGGER ledger_grew AFTER INSERT ON ledger BEGIN
    INSERT INTO recorded VALUES (new.tenant, length(CAST(new.row AS BLOB)) + 64)
        ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER ledger_shrank AFTER DELETE ON ledger BEGIN
    UPDATE recorded SET bytes = bytes - length(CAST(old.row AS BLOB)) - 64 WHERE tenant = old.tenant;
END;
CREATE TRIGGER call_reserved AFTER INSERT ON calls BEGIN
    INSERT INTO recorded VALUES (new.tenant, length(CAST(new.argv AS BLOB)) + coalesce(length(new.answer), 0) + 256)
        ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER call_answered AFTER UPDATE OF answer ON calls BEGIN
    UPDATE recorded SET bytes = bytes - coalesce(length(old.answer), 0) + coalesce(length(new.answer), 0)
        WHERE tenant = new.tenant;
END;
CREATE TRIGGER call_forgotten AFTER DELETE ON calls BEGIN
    UPDATE recorded SET bytes = bytes - length(CAST(old.argv AS BLOB)) - coalesce(length(old.answer), 0) - 256
        WHERE tenant = old.tenant;
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

-- Which key made it; unknown of those that were there before.
ALTER TABLE webhooks ADD COLUMN key BLOB;
