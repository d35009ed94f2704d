-- Which key began it; unknown of those that were there before.
ALTER TABLE builds ADD COLUMN key BLOB;
