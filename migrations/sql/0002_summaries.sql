-- Equality of a uuid in an exclusion constraint, where the extension that could do it need not be installed.
CREATE TYPE uuidrange AS RANGE (subtype = uuid);

ALTER TABLE sessions ADD COLUMN covered_tokens BIGINT DEFAULT '0' NOT NULL;
ALTER TABLE sessions ADD COLUMN redactions INTEGER DEFAULT '0' NOT NULL;
ALTER TABLE views ADD COLUMN afresh TEXT;
ALTER TABLE epochs ADD COLUMN folded UUID[] DEFAULT '{}' NOT NULL;

CREATE TABLE compactions (
    session_id UUID NOT NULL,
    id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    state TEXT NOT NULL,
    reason TEXT NOT NULL,
    focus TEXT,
    attempts INTEGER DEFAULT '0' NOT NULL,
    error TEXT,
    from_seq BIGINT,
    to_seq BIGINT,
    summaries UUID[] DEFAULT '{}' NOT NULL,
    tokens_read BIGINT DEFAULT '0' NOT NULL,
    tokens_before BIGINT DEFAULT '0' NOT NULL,
    tokens_after BIGINT DEFAULT '0' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT compactions_pkey PRIMARY KEY (session_id, id),
    CONSTRAINT compactions_state_check CHECK (state IN ('scheduled', 'running', 'succeeded', 'skipped', 'failed')),
    CONSTRAINT compactions_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (session_id) ON DELETE CASCADE
);

CREATE INDEX compactions_open_idx ON compactions (created_at) WHERE state IN ('scheduled', 'running');

CREATE TABLE redactions (
    session_id UUID NOT NULL,
    seq BIGINT NOT NULL,
    tenant_id UUID NOT NULL,
    key_id UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT redactions_pkey PRIMARY KEY (session_id, seq),
    CONSTRAINT redactions_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (session_id) ON DELETE CASCADE
);

CREATE TABLE summaries (
    session_id UUID NOT NULL,
    id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    cover_id UUID NOT NULL,
    depth INTEGER NOT NULL,
    from_seq BIGINT NOT NULL,
    to_seq BIGINT NOT NULL,
    text TEXT NOT NULL,
    digest JSON NOT NULL,
    tokens INTEGER NOT NULL,
    source_tokens BIGINT NOT NULL,
    events INTEGER NOT NULL,
    turns INTEGER[] NOT NULL,
    split_turn INTEGER,
    starts_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ends_at TIMESTAMP WITH TIME ZONE NOT NULL,
    summarizer TEXT NOT NULL,
    model TEXT,
    prompt_version TEXT,
    usage JSON NOT NULL,
    degraded BOOLEAN NOT NULL,
    status TEXT NOT NULL,
    complaints TEXT[] DEFAULT '{}' NOT NULL,
    sources UUID[] DEFAULT '{}' NOT NULL,
    superseded_by UUID,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT summaries_pkey PRIMARY KEY (session_id, id),
    CONSTRAINT summaries_span_check CHECK (1 <= from_seq AND from_seq <= to_seq),
    CONSTRAINT summaries_status_check CHECK (status IN ('live', 'superseded', 'refused', 'invalid')),
    CONSTRAINT summaries_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (session_id) ON DELETE CASCADE,
    -- No event is covered twice, at whatever depth.
    CONSTRAINT summaries_live_excl EXCLUDE USING gist (
        uuidrange(cover_id, cover_id, '[]') WITH =, int8range(from_seq, to_seq, '[]') WITH &&
    ) WHERE (status = 'live')
);

CREATE INDEX summaries_live_idx ON summaries (session_id, cover_id, from_seq) WHERE status = 'live';

CREATE INDEX summaries_degraded_idx ON summaries (created_at) WHERE status = 'live' AND degraded;

-- Redaction is the one change to an event: the redactor names its session in the transaction-local setting
-- palimpsest.redacting, and only what it said is destroyed, also where an epoch's stubs quote it.
CREATE OR REPLACE FUNCTION palimpsest_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND to_jsonb(OLD) ->> 'session_id' = current_setting('palimpsest.erasing', true) THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' AND TG_TABLE_NAME IN ('events', 'epochs')
       AND to_jsonb(OLD) ->> 'session_id' = current_setting('palimpsest.redacting', true)
       AND to_jsonb(OLD) - '{body,gist,frontier}'::text[] = to_jsonb(NEW) - '{body,gist,frontier}'::text[] THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '% rows are immutable', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;

-- One waiting or running job a session. A function, so that a statement that asks for none does not touch the queue:
-- its trigger notifies for every statement, whether or not it inserts a row.
CREATE FUNCTION palimpsest_compact(session UUID, tenant UUID) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pgqueuer (priority, entrypoint, payload, dedupe_key, status)
    VALUES (0, 'compact', convert_to(session || ' ' || tenant, 'UTF8'), 'compact:' || session, 'queued')
    ON CONFLICT (dedupe_key)
        WHERE ((status = ANY (ARRAY['queued'::pgqueuer_status, 'picked'::pgqueuer_status])) AND (dedupe_key IS NOT NULL))
        DO NOTHING;
    RETURN FOUND;
END
$$;
