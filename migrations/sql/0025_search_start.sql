-- A long session is indexed from its end: until that is done, its index has the events from this one to its head.
ALTER TABLE search_heads ADD COLUMN start BIGINT DEFAULT '1' NOT NULL;
