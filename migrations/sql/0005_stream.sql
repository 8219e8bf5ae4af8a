-- Somebody reads the session's stream until then: only so long does an append tell of itself.
ALTER TABLE sessions ADD COLUMN streamed_until TIMESTAMP WITH TIME ZONE;

-- How many changes a session has had. Whoever makes one holds this row until its transaction ends, so that numbers
-- become visible in their order; it is the last row that a transaction locks. Therefore no foreign keys to the session
-- from here on: they would lock its row behind others that its erasure locks after it.
CREATE TABLE change_counts (
    session_id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    number BIGINT NOT NULL,
    CONSTRAINT change_counts_pkey PRIMARY KEY (session_id)
);

-- What happened to a session beside its log, in order: epochs opened, compactions that began and ended.
CREATE TABLE changes (
    session_id UUID NOT NULL,
    number BIGINT NOT NULL,
    tenant_id UUID NOT NULL,
    kind TEXT NOT NULL,
    head BIGINT NOT NULL,
    body JSON NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT changes_pkey PRIMARY KEY (session_id, number),
    CONSTRAINT changes_kind_check CHECK (kind IN ('epoch', 'compaction'))
);

CREATE TABLE webhooks (
    tenant_id UUID NOT NULL,
    name TEXT NOT NULL,
    url TEXT NOT NULL,
    events TEXT[] NOT NULL,
    secret TEXT NOT NULL,
    private_targets BOOLEAN NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT webhooks_pkey PRIMARY KEY (tenant_id, name),
    CONSTRAINT webhooks_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenants (tenant_id)
);

CREATE TABLE deliveries (
    session_id UUID NOT NULL,
    id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    webhook TEXT NOT NULL,
    type TEXT NOT NULL,
    body TEXT NOT NULL,
    state TEXT DEFAULT 'pending' NOT NULL,
    attempts INTEGER DEFAULT '0' NOT NULL,
    next_at TIMESTAMP WITH TIME ZONE DEFAULT now(),
    status INTEGER,
    error TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT deliveries_pkey PRIMARY KEY (session_id, id),
    CONSTRAINT deliveries_state_check CHECK (state IN ('pending', 'delivered', 'failed')),
    CONSTRAINT deliveries_webhook_fkey FOREIGN KEY(tenant_id, webhook) REFERENCES webhooks (tenant_id, name) ON DELETE CASCADE
);

CREATE INDEX deliveries_listed_idx ON deliveries (tenant_id, webhook, created_at DESC, id DESC);
CREATE INDEX deliveries_pending_idx ON deliveries (next_at) WHERE state = 'pending';
CREATE INDEX deliveries_finished_idx ON deliveries (finished_at) WHERE state <> 'pending';

-- One waiting or running job a delivery; one that waits is to run now.
CREATE FUNCTION palimpsest_deliver(session UUID, delivery UUID) RETURNS VOID LANGUAGE sql AS $$
    INSERT INTO pgqueuer (priority, entrypoint, payload, dedupe_key, status)
    VALUES (0, 'deliver', convert_to(session || ' ' || delivery, 'UTF8'), 'deliver:' || delivery, 'queued')
    ON CONFLICT (dedupe_key)
        WHERE ((status = ANY (ARRAY['queued'::pgqueuer_status, 'picked'::pgqueuer_status])) AND (dedupe_key IS NOT NULL))
        DO UPDATE SET execute_after = now();
$$;

-- The lease is looked at behind the lock: a reader takes it under the same one, and reads after that.
CREATE FUNCTION palimpsest_change(session UUID, tenant UUID, what TEXT, at_head BIGINT, told JSON)
RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    next BIGINT;
BEGIN
    INSERT INTO change_counts (session_id, tenant_id, number) VALUES (session, tenant, 1)
    ON CONFLICT (session_id) DO UPDATE SET number = change_counts.number + 1 RETURNING number INTO next;
    INSERT INTO changes (session_id, number, tenant_id, kind, head, body)
    VALUES (session, next, tenant, what, at_head, told);
    PERFORM pg_notify('palimpsest_stream', session::text) FROM sessions
    WHERE session_id = session AND streamed_until > now();
END
$$;

CREATE FUNCTION palimpsest_change_epoch() RETURNS TRIGGER LANGUAGE plpgsql SET timezone = 'UTC' AS $$
BEGIN
    PERFORM palimpsest_change(NEW.session_id, NEW.tenant_id, 'epoch', NEW.head, json_build_object(
        'session', s.external_id, 'view', NEW.view, 'epoch', NEW.epoch, 'current', v.epoch = NEW.epoch,
        'cause', NEW.cause, 'head', NEW.head, 'tokens_before', NEW.tokens_before, 'tokens_after', NEW.tokens_after,
        'created_at', NEW.created_at))
    FROM sessions s JOIN views v ON v.session_id = s.session_id AND v.view = NEW.view
    WHERE s.session_id = NEW.session_id;
    RETURN NULL;
END
$$;

-- Each step of a run is told once, to the stream and to the webhooks that ask for it. How much there was before is
-- what was found at the beginning; a run that changed nothing says nothing of its own.
CREATE FUNCTION palimpsest_change_compaction() RETURNS TRIGGER LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
    step TEXT := CASE NEW.state WHEN 'scheduled' THEN 'scheduled' WHEN 'running' THEN 'started'
                                WHEN 'failed' THEN 'failed' ELSE 'finished' END;
    before BIGINT := NEW.tokens_before;
    after BIGINT := CASE WHEN NEW.state = 'succeeded' THEN NEW.tokens_after END;
    told JSON;
    at_head BIGINT;
    delivery UUID;
BEGIN
    IF TG_OP = 'UPDATE' AND before = 0 THEN
        before := OLD.tokens_before;
    END IF;
    SELECT s.head, json_build_object('session', s.external_id, 'state', step,
        'run', json_build_object('id', NEW.id, 'state', NEW.state, 'reason', NEW.reason, 'focus', NEW.focus,
            'attempts', NEW.attempts, 'error', NEW.error, 'from_seq', NEW.from_seq, 'to_seq', NEW.to_seq,
            'summaries', NEW.summaries, 'tokens_read', NEW.tokens_read, 'tokens_before', NEW.tokens_before,
            'tokens_after', NEW.tokens_after, 'created_at', NEW.created_at, 'started_at', NEW.started_at,
            'finished_at', NEW.finished_at, 'batches_created', cardinality(NEW.summaries),
            'messages_compressed', (SELECT coalesce(sum(m.events), 0) FROM summaries m
                WHERE m.session_id = NEW.session_id AND m.id = ANY (NEW.summaries) AND m.depth = 0)),
        'tokens', json_build_object('before', nullif(before, 0), 'after', after,
                                    'compacted', CASE WHEN NEW.state IN ('succeeded', 'skipped', 'failed')
                                                      THEN greatest(0, before - coalesce(after, before)) END),
        'aborted', NEW.state = 'failed', 'will_retry', NEW.state = 'scheduled' AND NEW.attempts > 0,
        'kept_from_seq', NEW.to_seq + 1)
    INTO at_head, told FROM sessions s WHERE s.session_id = NEW.session_id;
    FOR delivery IN
        INSERT INTO deliveries (session_id, id, tenant_id, webhook, type, body)
        SELECT NEW.session_id, gen_random_uuid(), NEW.tenant_id, w.name, 'compaction.' || step,
               json_build_object('type', 'compaction.' || step, 'timestamp', now(), 'data', told)
        FROM webhooks w WHERE w.tenant_id = NEW.tenant_id AND 'compaction.' || step = ANY (w.events)
        RETURNING id
    LOOP
        PERFORM palimpsest_deliver(NEW.session_id, delivery);
    END LOOP;
    PERFORM palimpsest_change(NEW.session_id, NEW.tenant_id, 'compaction', at_head, told);
    RETURN NULL;
END
$$;

CREATE TRIGGER epochs_change AFTER INSERT ON epochs FOR EACH ROW EXECUTE FUNCTION palimpsest_change_epoch();
CREATE TRIGGER compactions_change_begun AFTER INSERT ON compactions
    FOR EACH ROW EXECUTE FUNCTION palimpsest_change_compaction();
CREATE TRIGGER compactions_change AFTER UPDATE ON compactions
    FOR EACH ROW WHEN (OLD.state <> NEW.state) EXECUTE FUNCTION palimpsest_change_compaction();
