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

CREATE OR REPLACE FUNCTION palimpsest_change(session UUID, tenant UUID, what TEXT, at_head BIGINT, told JSON)
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

CREATE OR REPLACE FUNCTION palimpsest_change_epoch() RETURNS TRIGGER LANGUAGE plpgsql SET timezone = 'UTC' AS $$
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

CREATE OR REPLACE FUNCTION palimpsest_change_compaction() RETURNS TRIGGER LANGUAGE plpgsql SET timezone = 'UTC' AS $$
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

DROP FUNCTION palimpsest_compaction_moved(UUID, UUID, TEXT, BIGINT);
DROP FUNCTION palimpsest_epoch_opened(UUID, TEXT, INTEGER);
DROP FUNCTION palimpsest_tell_compaction(compactions, BIGINT);
DROP FUNCTION palimpsest_tell_epoch(epochs);

-- The functions below find their tables where this one does, whatever their caller's search path is.
SELECT set_config('palimpsest.search_path', current_setting('search_path'), true),
       set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

CREATE OR REPLACE FUNCTION palimpsest_across_compactions(older_than DOUBLE PRECISION)
RETURNS TABLE (session_id UUID, tenant_id UUID)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT DISTINCT c.session_id, c.tenant_id FROM compactions c
    WHERE c.state IN ('scheduled', 'running') AND c.created_at < now() - make_interval(secs => older_than) LIMIT 1000
$$;

CREATE OR REPLACE FUNCTION palimpsest_across_deliveries(overdue DOUBLE PRECISION, most INTEGER)
RETURNS TABLE (session_id UUID, id UUID)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT d.session_id, d.id FROM deliveries d
    WHERE d.state = 'pending' AND d.next_at < now() - make_interval(secs => overdue) AND NOT EXISTS (
        SELECT FROM pgqueuer q WHERE q.dedupe_key = 'deliver:' || d.id AND q.status IN ('queued', 'picked'))
    ORDER BY d.next_at LIMIT most
$$;

CREATE OR REPLACE FUNCTION palimpsest_across_degraded(older_than DOUBLE PRECISION, most INTEGER)
RETURNS TABLE (session_id UUID, tenant_id UUID)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT DISTINCT s.session_id, s.tenant_id FROM summaries s
    WHERE s.status = 'live' AND s.degraded AND s.created_at < now() - make_interval(secs => older_than)
      AND NOT EXISTS (SELECT FROM provider_spend p WHERE p.tenant_id = s.tenant_id
                      AND p.day = (now() AT TIME ZONE 'UTC')::date AND p.refused > 0) LIMIT most
$$;

CREATE OR REPLACE FUNCTION palimpsest_across_delivery(session UUID, delivery UUID) RETURNS UUID
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT d.tenant_id FROM deliveries d WHERE d.session_id = session AND d.id = delivery
$$;

CREATE OR REPLACE FUNCTION palimpsest_across_layers(session UUID, of_kind TEXT, from_version INTEGER, most INTEGER)
RETURNS TABLE (tenant_id UUID, session_id UUID, kind TEXT, version INTEGER, created_at TIMESTAMPTZ, until TIMESTAMPTZ)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT l.tenant_id, l.session_id, l.kind, l.version, l.created_at, newer.created_at FROM layers l
    LEFT JOIN LATERAL (SELECT n.created_at FROM layers n WHERE n.session_id = l.session_id AND n.kind = l.kind
        AND n.version > l.version ORDER BY n.version LIMIT 1) newer ON newer.created_at < now() - interval '1 hour'
    WHERE (l.session_id, l.kind, l.version) > (session, of_kind, from_version)
    ORDER BY l.session_id, l.kind, l.version LIMIT most
$$;

CREATE OR REPLACE FUNCTION palimpsest_across_purge(what TEXT, most INTEGER) RETURNS INTEGER
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    gone INTEGER;
BEGIN
    CASE what
        WHEN 'appends' THEN
            DELETE FROM appends WHERE (session_id, key) IN (
                SELECT session_id, key FROM appends WHERE created_at < now() - interval '24 hours'
                ORDER BY created_at LIMIT most FOR UPDATE SKIP LOCKED);
        WHEN 'calls' THEN
            DELETE FROM model_calls WHERE (session_id, call_id) IN (
                SELECT session_id, call_id FROM model_calls WHERE expires_at < now()
                ORDER BY expires_at LIMIT most FOR UPDATE SKIP LOCKED);
        WHEN 'deliveries' THEN
            DELETE FROM deliveries WHERE (session_id, id) IN (
                SELECT session_id, id FROM deliveries
                WHERE state <> 'pending' AND finished_at < now() - interval '30 days'
                ORDER BY finished_at LIMIT most FOR UPDATE SKIP LOCKED);
    END CASE;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;

DROP FUNCTION palimpsest_purge_shards(TEXT, INTEGER);
DROP FUNCTION palimpsest_distributed();

SELECT set_config('search_path', current_setting('palimpsest.search_path'), true);
