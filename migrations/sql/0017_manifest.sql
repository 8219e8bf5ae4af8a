-- Records are immutable, and writing a table of many millions anew would keep every context waiting: older records keep
-- these columns empty, and their manifests are read instead.
ALTER TABLE model_calls
    ADD COLUMN clock TIMESTAMP WITH TIME ZONE,
    ADD COLUMN window_tokens INTEGER,
    ADD COLUMN outside_tokens INTEGER,
    ADD COLUMN tools_tokens INTEGER,
    ADD COLUMN system_tokens INTEGER,
    ADD COLUMN ephemeral_tokens INTEGER,
    ADD COLUMN breakpoint_tokens INTEGER[],
    ADD COLUMN breakpoint_blocks INTEGER[];
