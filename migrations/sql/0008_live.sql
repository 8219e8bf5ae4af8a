-- Grows with every layer that is put or taken away, so that whoever holds what was read of a session can tell.
ALTER TABLE sessions ADD COLUMN layers_version INTEGER DEFAULT '0' NOT NULL;

-- What is shown behind the conversation for a while: the newest version of each kind, unless that has no content. Calls
-- name the versions they showed. One put into an explicitly started turn is that turn's alone.
CREATE TABLE layers (
    session_id UUID NOT NULL,
    kind TEXT NOT NULL,
    version INTEGER NOT NULL,
    tenant_id UUID NOT NULL,
    content JSON,
    tokens INTEGER NOT NULL,
    turn INTEGER,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT layers_pkey PRIMARY KEY (session_id, kind, version),
    CONSTRAINT layers_kind_check CHECK (kind IN ('sources', 'announce')),
    CONSTRAINT layers_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (session_id) ON DELETE CASCADE
);

CREATE INDEX events_turns_idx ON events (session_id, turn, seq) WHERE type IN ('turn.start', 'turn.end');

-- Versions are never changed. They go with their session, or when a sweep says so in the transaction-local setting
-- palimpsest.sweeping: it has seen that a newer one stands and that no record of a call can name this one.
CREATE FUNCTION palimpsest_layer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND (OLD.session_id::text = current_setting('palimpsest.erasing', true)
                             OR current_setting('palimpsest.sweeping', true) = 'layers') THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '% rows are immutable', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER layers_immutable BEFORE UPDATE OR DELETE ON layers
    FOR EACH ROW EXECUTE FUNCTION palimpsest_layer();
CREATE TRIGGER layers_not_truncated BEFORE TRUNCATE ON layers
    FOR EACH STATEMENT EXECUTE FUNCTION palimpsest_immutable();
