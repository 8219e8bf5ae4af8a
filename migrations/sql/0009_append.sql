-- The calls that the last append answered, as they stood among the open ones: the append needs them after it has taken
-- them out, and takes them out by the same way to the row by which it finds them.
ALTER TABLE sessions ADD COLUMN answered JSONB DEFAULT '{}' NOT NULL;
