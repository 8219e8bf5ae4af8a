ALTER TABLE compactions DROP COLUMN policy_version;
ALTER TABLE compactions DROP COLUMN policy_name;
ALTER TABLE compactions DROP COLUMN window_tokens;
ALTER TABLE compactions DROP COLUMN view;
