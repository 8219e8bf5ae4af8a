DROP TABLE layers;
DROP FUNCTION palimpsest_layer();
DROP INDEX events_turns_idx;
ALTER TABLE sessions DROP COLUMN layers_version;
