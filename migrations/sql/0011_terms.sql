-- What a term is has changed: an index of an earlier version is made anew when it is next searched.
ALTER TABLE search_heads ADD COLUMN version SMALLINT DEFAULT '1' NOT NULL;
