-- The context that waits for a run: of which view, in which window, under which policy. None of a run that nobody waits
-- for with a context.
ALTER TABLE compactions ADD COLUMN view TEXT;
ALTER TABLE compactions ADD COLUMN window_tokens INTEGER;
ALTER TABLE compactions ADD COLUMN policy_name TEXT;
ALTER TABLE compactions ADD COLUMN policy_version INTEGER;
