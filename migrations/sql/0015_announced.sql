-- Versions are never changed. They go with their session, or when a sweep says so in the transaction-local setting
-- palimpsest.sweeping: it has seen that a newer one stands and that no record of a call can name this one. When a turn
-- ends, what was announced in it becomes an event: where that is redacted (palimpsest.redacting), so are its versions.
CREATE OR REPLACE FUNCTION palimpsest_layer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND (OLD.session_id::text = current_setting('palimpsest.erasing', true)
                             OR current_setting('palimpsest.sweeping', true) = 'layers') THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' AND OLD.session_id::text = current_setting('palimpsest.redacting', true)
       AND NEW.content IS NULL AND NEW.tokens = 0
       AND to_jsonb(OLD) - '{content,tokens}'::text[] = to_jsonb(NEW) - '{content,tokens}'::text[] THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '% rows are immutable', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;
