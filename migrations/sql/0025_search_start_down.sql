-- A search of the earlier version builds these indexes again, because none of its terms are of version 0.
UPDATE search_heads SET version = 0 WHERE start > 1;
DELETE FROM pgqueuer WHERE entrypoint = 'index';
ALTER TABLE search_heads DROP COLUMN start;
