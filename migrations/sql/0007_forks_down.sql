ALTER TABLE summaries DROP COLUMN origin;
DROP INDEX sessions_parent_idx;
ALTER TABLE sessions DROP COLUMN lineage_to;
ALTER TABLE sessions DROP COLUMN lineage_ids;
ALTER TABLE sessions DROP COLUMN parent_at;
ALTER TABLE sessions DROP COLUMN parent;
