-- What was indexed since would not be found by the terms of before.
DELETE FROM search WHERE session_id IN (SELECT session_id FROM search_heads WHERE version <> 1);
DELETE FROM search_heads WHERE version <> 1;
ALTER TABLE search_heads DROP COLUMN version;
