-- The role that the application acts as. Roles are the server's and not the database's: it may be there already, made by
-- the migration of another database or by an administrator, and it stays when the migration is undone.
DO $$
DECLARE
    acting TEXT := current_setting('role');
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'palimpsest_app') THEN
        BEGIN
            CREATE ROLE palimpsest_app NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL;  -- just now, by another database's migration
        END;
    END IF;
    BEGIN  -- whether this login may act as it
        PERFORM set_config('role', 'palimpsest_app', true);
        PERFORM set_config('role', acting, true);
    EXCEPTION WHEN insufficient_privilege THEN
        EXECUTE format('GRANT palimpsest_app TO %I', session_user);
    END;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE EXCEPTION
        '% may not make the role palimpsest_app: have an administrator run CREATE ROLE palimpsest_app NOLOGIN; GRANT palimpsest_app TO %;',
        session_user, quote_ident(session_user) USING ERRCODE = 'insufficient_privilege';
END
$$;

-- What is under way on sessions is waited for first: whatever touches several of the tables touches that one, too.
LOCK TABLE sessions, appends, events, views, epochs, model_calls, summaries, compactions, redactions, visibility, layers,
    search_heads, search, change_counts, changes, webhooks, deliveries, policies, calibrations, api_keys, tenants
    IN ACCESS EXCLUSIVE MODE;

-- The functions below find their tables where this one does, whatever their caller's search path is.
SELECT set_config('palimpsest.search_path', current_setting('search_path'), true),
       set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- For a table with a tenant's rows: the role sees and writes those of the tenant that its connection is set to, and none
-- where it is set to none. The subquery has the setting read once a statement and not once a row.
CREATE FUNCTION palimpsest_wall(tenants_own regclass) RETURNS VOID LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', tenants_own);
    EXECUTE format('CREATE POLICY palimpsest_tenant ON %s USING '
                   '(tenant_id = (SELECT nullif(current_setting(''palimpsest.tenant'', true), '''')::uuid))', tenants_own);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO palimpsest_app', tenants_own);
END
$$;
REVOKE ALL ON FUNCTION palimpsest_wall(REGCLASS) FROM PUBLIC;

DO $$ BEGIN EXECUTE format('GRANT USAGE ON SCHEMA %I TO palimpsest_app', current_schema()); END $$;

SELECT palimpsest_wall(walled) FROM unnest(ARRAY[
    'sessions', 'appends', 'events', 'views', 'epochs', 'model_calls', 'summaries', 'compactions', 'redactions',
    'visibility', 'layers', 'search_heads', 'search', 'change_counts', 'changes', 'webhooks', 'deliveries', 'policies',
    'calibrations', 'api_keys', 'tenants']::regclass[]) walled;
REVOKE INSERT, DELETE ON tenants FROM palimpsest_app;

-- The queue's own: jobs name a session and its tenant, and nothing of theirs.
GRANT SELECT, INSERT, UPDATE, DELETE ON pgqueuer, pgqueuer_log, pgqueuer_schedules, pgqueuer_statistics TO palimpsest_app;
GRANT USAGE ON SEQUENCE pgqueuer_id_seq, pgqueuer_schedules_id_seq, pgqueuer_statistics_id_seq TO palimpsest_app;
GRANT EXECUTE ON FUNCTION palimpsest_compact(UUID, UUID), palimpsest_deliver(UUID, UUID),
    palimpsest_change(UUID, UUID, TEXT, BIGINT, JSON) TO palimpsest_app;

-- What crosses tenants, run as the owner of the tables. Each gives no more than it takes to go on as one tenant.

-- Whose a key is must be known before there is a tenant to act for; the hash is the secret, and finds one row.
CREATE FUNCTION palimpsest_across_key(secret BYTEA) RETURNS SETOF api_keys
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT * FROM api_keys WHERE secret_sha256 = secret
$$;

-- Whether the server is open to everyone on this machine: it is until there was a key, anybody's.
CREATE FUNCTION palimpsest_across_keys_made() RETURNS BOOLEAN
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT EXISTS (SELECT FROM api_keys)
$$;

-- Housekeeping looks for work that was lost, whosever it is; what is found is queued by its ids.
CREATE FUNCTION palimpsest_across_compactions(older_than DOUBLE PRECISION)
RETURNS TABLE (session_id UUID, tenant_id UUID)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT DISTINCT c.session_id, c.tenant_id FROM compactions c
    WHERE c.state IN ('scheduled', 'running') AND c.created_at < now() - make_interval(secs => older_than) LIMIT 1000
$$;

CREATE FUNCTION palimpsest_across_deliveries(overdue DOUBLE PRECISION, most INTEGER)
RETURNS TABLE (session_id UUID, id UUID)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT d.session_id, d.id FROM deliveries d
    WHERE d.state = 'pending' AND d.next_at < now() - make_interval(secs => overdue) AND NOT EXISTS (
        SELECT FROM pgqueuer q WHERE q.dedupe_key = 'deliver:' || d.id AND q.status IN ('queued', 'picked'))
    ORDER BY d.next_at LIMIT most
$$;

CREATE FUNCTION palimpsest_across_degraded(older_than DOUBLE PRECISION, most INTEGER)
RETURNS TABLE (session_id UUID, tenant_id UUID)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT DISTINCT s.session_id, s.tenant_id FROM summaries s
    WHERE s.status = 'live' AND s.degraded AND s.created_at < now() - make_interval(secs => older_than) LIMIT most
$$;

-- A delivery's job names the session and the delivery, and not whose they are.
CREATE FUNCTION palimpsest_across_delivery(session UUID, delivery UUID) RETURNS UUID
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT d.tenant_id FROM deliveries d WHERE d.session_id = session AND d.id = delivery
$$;

-- Versions of layers in the order of their key, and when the next one of its kind was put: what is to go is looked for
-- among all, and deleted tenant by tenant.
CREATE FUNCTION palimpsest_across_layers(session UUID, of_kind TEXT, from_version INTEGER, most INTEGER)
RETURNS TABLE (tenant_id UUID, session_id UUID, kind TEXT, version INTEGER, created_at TIMESTAMPTZ, until TIMESTAMPTZ)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT l.tenant_id, l.session_id, l.kind, l.version, l.created_at, newer.created_at FROM layers l
    LEFT JOIN LATERAL (SELECT n.created_at FROM layers n WHERE n.session_id = l.session_id AND n.kind = l.kind
        AND n.version > l.version ORDER BY n.version LIMIT 1) newer ON newer.created_at < now() - interval '1 hour'
    WHERE (l.session_id, l.kind, l.version) > (session, of_kind, from_version)
    ORDER BY l.session_id, l.kind, l.version LIMIT most
$$;

-- What is kept for a time only goes whosever it is, the oldest first, so many at a time. How long that is is said here:
-- no caller can have anything else deleted.
CREATE FUNCTION palimpsest_across_purge(what TEXT, most INTEGER) RETURNS INTEGER
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

-- A session's entries that hold any of the words. It crosses nothing: the policy's condition is in it. But below a policy
-- Postgres enters no index by an operator that is not known to be leakproof, and && is not, so it runs as the owner.
-- EXECUTE plans it for its arguments: whether a session is short enough to be read along is known only with the session.
CREATE FUNCTION palimpsest_hits(session UUID, words BIGINT[], up_to BIGINT, asking BIGINT, speaking BIGINT[])
RETURNS TABLE (seq BIGINT, length INTEGER, counts SMALLINT[], asks BOOLEAN, speaks BOOLEAN)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY EXECUTE '
        SELECT s.seq, s.length, ARRAY(
            SELECT coalesce(s.counts[array_position(s.terms, q.term)], 0::smallint)
            FROM unnest($2) WITH ORDINALITY q(term, n) ORDER BY n), $4 = ANY(s.terms), s.terms && $5
        FROM search s WHERE s.session_id = $1 AND s.terms && $2 AND s.seq <= $3
          AND s.tenant_id = nullif(current_setting(''palimpsest.tenant'', true), '''')::uuid'
    USING session, words, up_to, asking, speaking;
END
$$;

DO $$
DECLARE
    across REGPROCEDURE;
BEGIN
    FOR across IN SELECT oid FROM pg_proc WHERE pronamespace = current_schema()::regnamespace AND prosecdef
                  AND (starts_with(proname, 'palimpsest_across_') OR proname = 'palimpsest_hits')
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', across);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO palimpsest_app', across);
    END LOOP;
END
$$;

SELECT set_config('search_path', current_setting('palimpsest.search_path'), true);
