DROP FUNCTION palimpsest_across_erasures();
DROP FUNCTION palimpsest_across_retention();
DROP FUNCTION palimpsest_across_expired(INTEGER);

CREATE OR REPLACE FUNCTION palimpsest_recorded() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    outcome CONSTANT TEXT[] := '{reported_at,input_tokens,cache_read_tokens,cache_write_tokens,output_tokens,latency_ms,error,overflow}';
BEGIN
    IF TG_OP = 'DELETE' AND (OLD.expires_at < now()
                             OR OLD.session_id::text = current_setting('palimpsest.erasing', true)) THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' AND to_jsonb(OLD) - outcome = to_jsonb(NEW) - outcome THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '% rows are immutable but for their outcome', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;

DROP INDEX changes_created_idx;
DROP INDEX compactions_ended_idx;
ALTER TABLE sessions DROP COLUMN called_at;
DELETE FROM pgqueuer WHERE entrypoint = 'erase';
DROP TABLE erased;
DROP TABLE erasures;
DROP TABLE retention;
