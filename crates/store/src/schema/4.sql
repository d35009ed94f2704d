-- Where changes are told to. `done` is the number of the last delivery that came to an end: those after it wait, in order.
CREATE TABLE webhooks (
    tenant TEXT NOT NULL, id BLOB NOT NULL, url TEXT NOT NULL, secret TEXT NOT NULL, events TEXT NOT NULL,
    created INTEGER NOT NULL, disabled INTEGER, why TEXT,
    done INTEGER NOT NULL, delivered INTEGER NOT NULL, dropped INTEGER NOT NULL,
    PRIMARY KEY (tenant, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE deliveries (
    webhook BLOB NOT NULL, number INTEGER NOT NULL, event TEXT NOT NULL, type TEXT NOT NULL, body TEXT NOT NULL,
    made INTEGER NOT NULL, attempts INTEGER NOT NULL, due INTEGER NOT NULL, said TEXT, ended INTEGER,
    PRIMARY KEY (webhook, number)
) STRICT, WITHOUT ROWID;
