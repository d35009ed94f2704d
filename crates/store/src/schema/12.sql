-- Chats whose app or user has a hyphen were known by their parts as they are, which others can have together, too. One whose user has
-- `%2` in it is taken for one that is escaped already.
WITH
  named AS (
    SELECT physical, app, chat, value, substr(value, length(app) + 2, length(value) - length(app) - length(chat) - 2) AS user
    FROM sandboxes
    WHERE scheme = 'chat' AND length(value) > length(app) + length(chat) + 2
      AND substr(value, 1, length(app) + 1) = app || '-' AND substr(value, -length(chat) - 1) = '-' || chat
  ),
  plain AS (
    SELECT physical,
      replace(replace(app, '%', '%25'), '-', '%2D') || '-' || replace(replace(user, '%', '%25'), '-', '%2D') || '-' ||
      replace(chat, '%', '%25') AS key
    FROM named
    WHERE instr(app || user, '-') OR instr(app || chat, '%') OR (instr(user, '%') AND NOT instr(user, '%2') )
  )
UPDATE OR IGNORE sandboxes SET value = plain.key, scope = json_set(scope, '$.value', plain.key)
FROM plain WHERE plain.physical = sandboxes.physical AND plain.key <> sandboxes.value;

-- Whose it is, where its scope names a user; and of what is done with it, and taken of it.
ALTER TABLE sandboxes ADD COLUMN user TEXT;
ALTER TABLE calls ADD COLUMN user TEXT;
ALTER TABLE tasks ADD COLUMN user TEXT;
ALTER TABLE snapshots ADD COLUMN user TEXT;
UPDATE sandboxes SET user = value WHERE scheme = 'user';
WITH keyed AS (
  SELECT physical AS of, value AS whole, length(replace(replace(app, '%', '%25'), '-', '%2D')) AS before,
    length(replace(chat, '%', '%25')) AS behind
  FROM sandboxes WHERE scheme = 'chat'
)
UPDATE sandboxes
SET user = replace(replace(substr(whole, before + 2, length(whole) - before - behind - 2), '%2D', '-'), '%25', '%')
FROM keyed WHERE of = physical;
UPDATE calls SET user = whose.user FROM sandboxes AS whose
WHERE whose.user IS NOT NULL AND whose.tenant = calls.tenant AND whose.id = calls.sandbox;
UPDATE tasks SET user = whose.user FROM sandboxes AS whose
WHERE whose.user IS NOT NULL AND whose.tenant = tasks.tenant AND whose.id = tasks.sandbox;
UPDATE snapshots SET user = whose.user FROM sandboxes AS whose
WHERE whose.user IS NOT NULL AND whose.tenant = snapshots.tenant AND whose.id = snapshots.sandbox;

-- Whether a key with a subject may name other users, too.
ALTER TABLE keys ADD COLUMN any_subject INTEGER NOT NULL DEFAULT 0;
