ALTER TABLE sessions DROP COLUMN answered;
