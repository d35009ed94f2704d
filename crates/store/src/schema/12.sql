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
