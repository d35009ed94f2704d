-- Specs are long, so lists find their order without a look at the rows: by when sandboxes began to run, and by when they are due.
CREATE INDEX sandboxes_begun ON sandboxes (tenant, coalesce(started, created), id);
DROP INDEX sandboxes_due;
CREATE INDEX sandboxes_due ON sandboxes (due, physical, tenant) WHERE due IS NOT NULL;
