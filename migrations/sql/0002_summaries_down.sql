CREATE OR REPLACE FUNCTION palimpsest_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND to_jsonb(OLD) ->> 'session_id' = current_setting('palimpsest.erasing', true) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '% rows are immutable', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;

DROP FUNCTION palimpsest_compact(UUID, UUID);
DROP TABLE summaries;
DROP TABLE redactions;
DROP TABLE compactions;
ALTER TABLE epochs DROP COLUMN folded;
ALTER TABLE views DROP COLUMN afresh;
ALTER TABLE sessions DROP COLUMN redactions;
ALTER TABLE sessions DROP COLUMN covered_tokens;
DROP TYPE uuidrange;
