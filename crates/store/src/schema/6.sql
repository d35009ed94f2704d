-- Volumes: the name is the tenant's, the physical one the provider's own.
CREATE TABLE volumes (
    tenant TEXT NOT NULL, name TEXT NOT NULL, physical BLOB NOT NULL UNIQUE, state TEXT NOT NULL, created INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
