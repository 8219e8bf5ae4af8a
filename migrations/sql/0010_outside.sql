-- What a session's client sends beside the request, where it says so, and what a view's own calls have taught about it.
ALTER TABLE sessions ADD COLUMN outside_tokens INTEGER;
ALTER TABLE views ADD COLUMN reported_outside INTEGER;
ALTER TABLE views ADD COLUMN learned JSON;
ALTER TABLE views ADD COLUMN learned_version INTEGER DEFAULT '0' NOT NULL;

-- Since when a window is known, the largest input that was taken, and windows that were named and are not believed yet.
-- Times are epoch seconds.
ALTER TABLE calibrations ADD COLUMN window_at DOUBLE PRECISION DEFAULT '0' NOT NULL;
ALTER TABLE calibrations ADD COLUMN accepted_tokens INTEGER DEFAULT '0' NOT NULL;
ALTER TABLE calibrations ADD COLUMN accepted_at DOUBLE PRECISION DEFAULT '0' NOT NULL;
ALTER TABLE calibrations ADD COLUMN claims JSON DEFAULT '[]' NOT NULL;
UPDATE calibrations SET window_at = extract(epoch FROM updated_at) WHERE window_tokens IS NOT NULL;

-- What calls without a model taught about each other was about no model.
DELETE FROM calibrations WHERE model = '';
