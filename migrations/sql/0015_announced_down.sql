CREATE OR REPLACE FUNCTION palimpsest_layer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND (OLD.session_id::text = current_setting('palimpsest.erasing', true)
                             OR current_setting('palimpsest.sweeping', true) = 'layers') THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '% rows are immutable', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;
