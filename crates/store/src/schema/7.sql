-- What is kept of a task for whoever goes on with it: how it is typed to, and what its front calls it. JSON.
ALTER TABLE tasks ADD COLUMN about TEXT;
