DROP TABLE visibility;
ALTER TABLE sessions DROP COLUMN decisions;
