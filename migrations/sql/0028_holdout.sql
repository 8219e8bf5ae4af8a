-- The group of the call's session while a share of sessions is held out; null otherwise.
ALTER TABLE model_calls ADD COLUMN held_out BOOLEAN;
