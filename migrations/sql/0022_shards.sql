-- What functions do on a database whose sessions are in shards (docs/scaling.md), where triggers of a session's tables
-- run beside the shard and not beside the queue, SQL functions cannot be planned, and rows of several shards cannot be
-- locked by one statement. On any other database all of it does what it did before.

-- Whether sessions are in shards.
CREATE FUNCTION palimpsest_distributed() RETURNS BOOLEAN LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF to_regclass('pg_catalog.pg_dist_partition') IS NULL THEN
        RETURN false;
    END IF;
    RETURN EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = to_regclass('sessions'));
END
$$;

-- A shard has a name of its own: its table's and a number.
CREATE OR REPLACE FUNCTION palimpsest_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND to_jsonb(OLD) ->> 'session_id' = current_setting('palimpsest.erasing', true) THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' AND TG_TABLE_NAME ~ '^(events|epochs)(_[0-9]+)?$'
       AND to_jsonb(OLD) ->> 'session_id' = current_setting('palimpsest.redacting', true)
       AND to_jsonb(OLD) - '{body,gist,frontier}'::text[] = to_jsonb(NEW) - '{body,gist,frontier}'::text[] THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '% rows are immutable', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;

-- The lease is looked at behind the lock: a reader takes it under the same one, and reads after that.
CREATE OR REPLACE FUNCTION palimpsest_change(session UUID, tenant UUID, what TEXT, at_head BIGINT, told JSON)
RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    next BIGINT;
    heard BOOLEAN;
BEGIN
    INSERT INTO change_counts (session_id, tenant_id, number) VALUES (session, tenant, 1)
    ON CONFLICT (session_id) DO UPDATE SET number = change_counts.number + 1 RETURNING number INTO next;
    INSERT INTO changes (session_id, number, tenant_id, kind, head, body)
    VALUES (session, next, tenant, what, at_head, told);
    SELECT s.streamed_until > now() INTO heard FROM sessions s WHERE s.session_id = session;
    IF heard THEN
        PERFORM pg_notify('palimpsest_stream', session::text);
    END IF;
END
$$;

CREATE FUNCTION palimpsest_tell_epoch(opened epochs) RETURNS VOID LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
    name TEXT;
    now_at INTEGER;
BEGIN
    SELECT s.external_id, v.epoch INTO name, now_at
    FROM sessions s JOIN views v ON v.session_id = s.session_id AND v.view = opened.view
    WHERE s.session_id = opened.session_id;
    IF FOUND THEN
        PERFORM palimpsest_change(opened.session_id, opened.tenant_id, 'epoch', opened.head, json_build_object(
            'session', name, 'view', opened.view, 'epoch', opened.epoch, 'current', now_at = opened.epoch,
            'cause', opened.cause, 'head', opened.head, 'tokens_before', opened.tokens_before,
            'tokens_after', opened.tokens_after, 'created_at', opened.created_at));
    END IF;
END
$$;

-- Each step of a run is told once, to the stream and to the webhooks that ask for it. `before`: how much there was, as
-- found at the beginning; a run that changed nothing says nothing of its own.
CREATE FUNCTION palimpsest_tell_compaction(run compactions, before BIGINT)
RETURNS VOID LANGUAGE plpgsql SET timezone = 'UTC' AS $$
DECLARE
    step TEXT := CASE run.state WHEN 'scheduled' THEN 'scheduled' WHEN 'running' THEN 'started'
                                WHEN 'failed' THEN 'failed' ELSE 'finished' END;
    after BIGINT := CASE WHEN run.state = 'succeeded' THEN run.tokens_after END;
    name TEXT;
    at_head BIGINT;
    compressed BIGINT;
    told JSON;
    hook TEXT;
    delivery UUID;
BEGIN
    SELECT s.external_id, s.head INTO name, at_head FROM sessions s WHERE s.session_id = run.session_id;
    SELECT coalesce(sum(m.events), 0) INTO compressed FROM summaries m
    WHERE m.session_id = run.session_id AND m.id = ANY (run.summaries) AND m.depth = 0;
    told := json_build_object('session', name, 'state', step,
        'run', json_build_object('id', run.id, 'state', run.state, 'reason', run.reason, 'focus', run.focus,
            'attempts', run.attempts, 'error', run.error, 'from_seq', run.from_seq, 'to_seq', run.to_seq,
            'summaries', run.summaries, 'tokens_read', run.tokens_read, 'tokens_before', run.tokens_before,
            'tokens_after', run.tokens_after, 'created_at', run.created_at, 'started_at', run.started_at,
            'finished_at', run.finished_at, 'batches_created', cardinality(run.summaries),
            'messages_compressed', compressed),
        'tokens', json_build_object('before', nullif(before, 0), 'after', after,
                                    'compacted', CASE WHEN run.state IN ('succeeded', 'skipped', 'failed')
                                                      THEN greatest(0, before - coalesce(after, before)) END),
        'aborted', run.state = 'failed', 'will_retry', run.state = 'scheduled' AND run.attempts > 0,
        'kept_from_seq', run.to_seq + 1);
    FOR hook IN
        SELECT w.name FROM webhooks w
        WHERE w.tenant_id = run.tenant_id AND 'compaction.' || step = ANY (w.events) ORDER BY w.name
    LOOP
        delivery := gen_random_uuid();
        INSERT INTO deliveries (session_id, id, tenant_id, webhook, type, body)
        VALUES (run.session_id, delivery, run.tenant_id, hook, 'compaction.' || step,
                json_build_object('type', 'compaction.' || step, 'timestamp', now(), 'data', told)::text);
        PERFORM palimpsest_deliver(run.session_id, delivery);
    END LOOP;
    PERFORM palimpsest_change(run.session_id, run.tenant_id, 'compaction', at_head, told);
END
$$;

CREATE OR REPLACE FUNCTION palimpsest_change_epoch() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM palimpsest_tell_epoch(NEW);
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION palimpsest_change_compaction() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    PERFORM palimpsest_tell_compaction(
        NEW, CASE WHEN TG_OP = 'UPDATE' AND NEW.tokens_before = 0 THEN OLD.tokens_before ELSE NEW.tokens_before END);
    RETURN NULL;
END
$$;

-- What the triggers do, for a statement of the coordinator's own: of an epoch that was opened, and of a run that was
-- made or moved. `was` and `was_before` are the run's state and its tokens before, NULL for a new one.
CREATE FUNCTION palimpsest_epoch_opened(session UUID, of_view TEXT, number INTEGER)
RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    opened epochs;
BEGIN
    SELECT e.* INTO opened FROM epochs e WHERE e.session_id = session AND e.view = of_view AND e.epoch = number;
    IF FOUND THEN
        PERFORM palimpsest_tell_epoch(opened);
    END IF;
END
$$;

CREATE FUNCTION palimpsest_compaction_moved(session UUID, run_id UUID, was TEXT, was_before BIGINT)
RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    run compactions;
BEGIN
    SELECT c.* INTO run FROM compactions c WHERE c.session_id = session AND c.id = run_id;
    IF FOUND AND run.state IS DISTINCT FROM was THEN
        PERFORM palimpsest_tell_compaction(
            run, CASE WHEN run.tokens_before = 0 THEN coalesce(was_before, 0) ELSE run.tokens_before END);
    END IF;
END
$$;

-- The functions below find their tables where this one does, whatever their caller's search path is.
SELECT set_config('palimpsest.search_path', current_setting('search_path'), true),
       set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

CREATE OR REPLACE FUNCTION palimpsest_across_compactions(older_than DOUBLE PRECISION)
RETURNS TABLE (session_id UUID, tenant_id UUID)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY SELECT DISTINCT c.session_id, c.tenant_id FROM compactions c
    WHERE c.state IN ('scheduled', 'running') AND c.created_at < now() - make_interval(secs => older_than) LIMIT 1000;
END
$$;

-- Whether a delivery has a job, the coordinator's queue is asked one by one: until so many have none.
CREATE OR REPLACE FUNCTION palimpsest_across_deliveries(overdue DOUBLE PRECISION, most INTEGER)
RETURNS TABLE (session_id UUID, id UUID)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    found INTEGER := 0;
BEGIN
    FOR session_id, id IN
        SELECT d.session_id, d.id FROM deliveries d
        WHERE d.state = 'pending' AND d.next_at < now() - make_interval(secs => overdue) ORDER BY d.next_at
    LOOP
        EXIT WHEN found >= most;
        IF NOT EXISTS (SELECT FROM pgqueuer q
                       WHERE q.dedupe_key = 'deliver:' || palimpsest_across_deliveries.id
                         AND q.status IN ('queued', 'picked')) THEN
            found := found + 1;
            RETURN NEXT;
        END IF;
    END LOOP;
END
$$;

CREATE OR REPLACE FUNCTION palimpsest_across_degraded(older_than DOUBLE PRECISION, most INTEGER)
RETURNS TABLE (session_id UUID, tenant_id UUID)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY SELECT DISTINCT s.session_id, s.tenant_id FROM summaries s
    WHERE s.status = 'live' AND s.degraded AND s.created_at < now() - make_interval(secs => older_than)
      AND NOT EXISTS (SELECT FROM provider_spend p WHERE p.tenant_id = s.tenant_id
                      AND p.day = (now() AT TIME ZONE 'UTC')::date AND p.refused > 0) LIMIT most;
END
$$;

CREATE OR REPLACE FUNCTION palimpsest_across_delivery(session UUID, delivery UUID) RETURNS UUID
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN (SELECT d.tenant_id FROM deliveries d WHERE d.session_id = session AND d.id = delivery);
END
$$;

CREATE OR REPLACE FUNCTION palimpsest_across_layers(session UUID, of_kind TEXT, from_version INTEGER, most INTEGER)
RETURNS TABLE (tenant_id UUID, session_id UUID, kind TEXT, version INTEGER, created_at TIMESTAMPTZ, until TIMESTAMPTZ)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    FOR tenant_id, session_id, kind, version, created_at IN
        SELECT l.tenant_id, l.session_id, l.kind, l.version, l.created_at FROM layers l
        WHERE (l.session_id, l.kind, l.version) > (session, of_kind, from_version)
        ORDER BY l.session_id, l.kind, l.version LIMIT most
    LOOP
        SELECT n.created_at INTO until FROM layers n
        WHERE n.session_id = palimpsest_across_layers.session_id AND n.kind = palimpsest_across_layers.kind
          AND n.version > palimpsest_across_layers.version ORDER BY n.version LIMIT 1;
        IF until >= now() - interval '1 hour' THEN
            until := NULL;
        END IF;
        RETURN NEXT;
    END LOOP;
END
$$;

-- Rows of several shards are not locked by one statement, and so none that is locked is passed over: there all up to
-- the time of the last that may go are deleted. Whoever else deletes them waits, and finds none.
CREATE FUNCTION palimpsest_purge_shards(what TEXT, most INTEGER) RETURNS INTEGER
LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
    up_to TIMESTAMPTZ := CASE what WHEN 'appends' THEN now() - interval '24 hours'
                                   WHEN 'deliveries' THEN now() - interval '30 days' ELSE now() END;
    last TIMESTAMPTZ;
    gone INTEGER;
BEGIN
    CASE what
        WHEN 'appends' THEN
            SELECT created_at INTO last FROM appends WHERE created_at < up_to
            ORDER BY created_at OFFSET most - 1 LIMIT 1;
            DELETE FROM appends WHERE created_at < up_to AND created_at <= coalesce(last, up_to);
        WHEN 'calls' THEN
            SELECT expires_at INTO last FROM model_calls WHERE expires_at < up_to
            ORDER BY expires_at OFFSET most - 1 LIMIT 1;
            DELETE FROM model_calls WHERE expires_at < up_to AND expires_at <= coalesce(last, up_to);
        WHEN 'deliveries' THEN
            SELECT finished_at INTO last FROM deliveries WHERE state <> 'pending' AND finished_at < up_to
            ORDER BY finished_at OFFSET most - 1 LIMIT 1;
            DELETE FROM deliveries
            WHERE state <> 'pending' AND finished_at < up_to AND finished_at <= coalesce(last, up_to);
    END CASE;
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END
$$;
REVOKE ALL ON FUNCTION palimpsest_purge_shards(TEXT, INTEGER) FROM PUBLIC;

CREATE OR REPLACE FUNCTION palimpsest_across_purge(what TEXT, most INTEGER) RETURNS INTEGER
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    gone INTEGER;
BEGIN
    IF palimpsest_distributed() THEN
        RETURN palimpsest_purge_shards(what, most);
    END IF;
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

SELECT set_config('search_path', current_setting('palimpsest.search_path'), true);
