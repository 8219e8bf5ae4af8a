-- A fork names its parent, and whose events its log begins with: `lineage_ids`, oldest first, each up to the seq that
-- `lineage_to` says. Its parent need not be among them.
ALTER TABLE sessions ADD COLUMN parent TEXT;
ALTER TABLE sessions ADD COLUMN parent_at BIGINT;
ALTER TABLE sessions ADD COLUMN lineage_ids UUID[] DEFAULT '{}' NOT NULL;
ALTER TABLE sessions ADD COLUMN lineage_to BIGINT[] DEFAULT '{}' NOT NULL;

CREATE INDEX sessions_parent_idx ON sessions (tenant_id, parent, created_at DESC, session_id DESC) WHERE parent IS NOT NULL;

-- The session that holds what a taken over summary says, under the same id.
ALTER TABLE summaries ADD COLUMN origin UUID;
