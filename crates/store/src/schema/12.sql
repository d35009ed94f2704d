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

-- Whose it is, where its scope names a user, or else the key that made it; and of what is done with it, and taken of it. Where that is not
-- known any more it is '', which no key stands for.
ALTER TABLE sandboxes ADD COLUMN user TEXT;
ALTER TABLE calls ADD COLUMN user TEXT;
ALTER TABLE tasks ADD COLUMN user TEXT;
ALTER TABLE snapshots ADD COLUMN user TEXT;
UPDATE sandboxes SET user = value WHERE scheme = 'user';
UPDATE sandboxes SET user = (SELECT subject FROM keys WHERE keys.id = sandboxes.key) WHERE scheme IS NULL;
WITH keyed AS (
  SELECT physical AS of, value AS whole, replace(replace(app, '%', '%25'), '-', '%2D') || '-' AS before,
    '-' || replace(chat, '%', '%25') AS behind
  FROM sandboxes WHERE scheme = 'chat'
)
UPDATE sandboxes
SET user = CASE
  WHEN substr(whole, 1, length(before)) = before AND substr(whole, -length(behind)) = behind
    AND length(whole) > length(before) + length(behind)
  THEN replace(replace(substr(whole, length(before) + 1, length(whole) - length(before) - length(behind)), '%2D', '-'), '%25', '%')
  ELSE '' END
FROM keyed WHERE of = physical;
UPDATE calls SET user = whose.user FROM sandboxes AS whose
WHERE whose.user IS NOT NULL AND whose.tenant = calls.tenant AND whose.id = calls.sandbox;
UPDATE calls SET user = coalesce((SELECT subject FROM keys WHERE keys.id = calls.key), '')
WHERE sandbox IS NOT NULL AND NOT EXISTS (SELECT 1 FROM sandboxes AS its WHERE its.tenant = calls.tenant AND its.id = calls.sandbox);
UPDATE tasks SET user = whose.user FROM sandboxes AS whose
WHERE whose.user IS NOT NULL AND whose.tenant = tasks.tenant AND whose.id = tasks.sandbox;
UPDATE tasks SET user = coalesce((SELECT subject FROM keys WHERE keys.id = tasks.key), '')
WHERE NOT EXISTS (SELECT 1 FROM sandboxes AS its WHERE its.tenant = tasks.tenant AND its.id = tasks.sandbox);
UPDATE snapshots SET user = whose.user FROM sandboxes AS whose
WHERE whose.user IS NOT NULL AND whose.tenant = snapshots.tenant AND whose.id = snapshots.sandbox;
UPDATE snapshots SET user = ''
WHERE built = 0 AND NOT EXISTS (SELECT 1 FROM sandboxes AS its WHERE its.tenant = snapshots.tenant AND its.id = snapshots.sandbox);

-- Whether the sandbox was made for the call.
ALTER TABLE calls ADD COLUMN made INTEGER NOT NULL DEFAULT 0;

-- Whether a key with a subject may name other users, too.
ALTER TABLE keys ADD COLUMN any_subject INTEGER NOT NULL DEFAULT 0;
