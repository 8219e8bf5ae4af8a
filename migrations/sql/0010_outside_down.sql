ALTER TABLE calibrations DROP COLUMN claims;
ALTER TABLE calibrations DROP COLUMN accepted_at;
ALTER TABLE calibrations DROP COLUMN accepted_tokens;
ALTER TABLE calibrations DROP COLUMN window_at;
ALTER TABLE views DROP COLUMN learned_version;
ALTER TABLE views DROP COLUMN learned;
ALTER TABLE views DROP COLUMN reported_outside;
ALTER TABLE sessions DROP COLUMN outside_tokens;
