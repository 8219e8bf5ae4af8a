-- For how many days a tenant's data is kept. NULL: for ever.
CREATE TABLE retention (
    tenant_id UUID NOT NULL,
    session_days INTEGER,
    idle_days INTEGER,
    call_days INTEGER,
    compaction_days INTEGER,
    change_days INTEGER,
    delivery_days INTEGER,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT retention_pkey PRIMARY KEY (tenant_id),
    CONSTRAINT retention_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenants (tenant_id)
);

-- An erasure of the sessions that a filter finds. What must be forgotten is not kept here: the filter goes when it is
-- done, and its hash stays.
CREATE TABLE erasures (
    tenant_id UUID NOT NULL,
    id UUID NOT NULL,
    key_id UUID,
    idempotency_sha256 BYTEA,
    filter JSON,
    filter_sha256 BYTEA NOT NULL,
    forks BOOLEAN NOT NULL,
    sessions BIGINT,
    kept BIGINT,
    counts JSON,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    finished_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT erasures_pkey PRIMARY KEY (tenant_id, id),
    CONSTRAINT erasures_tenant_id_idempotency_sha256_key UNIQUE (tenant_id, idempotency_sha256),
    CONSTRAINT erasures_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenants (tenant_id)
);

-- The sessions that it has erased, by their keys (uuid5 of the tenant and the name), and how many rows of each table that
-- was. Written in the transaction that erases. No foreign key: the session is gone.
CREATE TABLE erased (
    session_id UUID NOT NULL,
    erasure_id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    counts JSON NOT NULL,
    erased_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT erased_pkey PRIMARY KEY (session_id, erasure_id)
);
CREATE INDEX erased_listed_idx ON erased (tenant_id, erasure_id, session_id);

SELECT palimpsest_wall(walled) FROM unnest(ARRAY['retention', 'erasures', 'erased']::regclass[]) walled;

-- When the session was last used by a call whose record was deleted: the records that are left tell no more.
ALTER TABLE sessions ADD COLUMN called_at TIMESTAMP WITH TIME ZONE;

CREATE INDEX compactions_ended_idx ON compactions (tenant_id, finished_at)
    WHERE state IN ('succeeded', 'skipped', 'failed');
CREATE INDEX changes_created_idx ON changes (tenant_id, created_at);

-- A record goes with its session, when its own time is over, or when a purge says so in the transaction-local setting
-- palimpsest.sweeping: its tenant keeps none as old.
CREATE OR REPLACE FUNCTION palimpsest_recorded() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    outcome CONSTANT TEXT[] := '{reported_at,input_tokens,cache_read_tokens,cache_write_tokens,output_tokens,latency_ms,error,overflow}';
BEGIN
    IF TG_OP = 'DELETE' AND (OLD.expires_at < now()
                             OR OLD.session_id::text = current_setting('palimpsest.erasing', true)
                             OR current_setting('palimpsest.sweeping', true) = 'calls') THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' AND to_jsonb(OLD) - outcome = to_jsonb(NEW) - outcome THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '% rows are immutable but for their outcome', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;

SELECT set_config('palimpsest.search_path', current_setting('search_path'), true),
       set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- Which records of calls are over, whosever they are: they are deleted tenant by tenant, after what they tell of their
-- session's last use was kept.
CREATE FUNCTION palimpsest_across_expired(most INTEGER)
RETURNS TABLE (tenant_id UUID, session_id UUID, call_id UUID, used_at TIMESTAMPTZ)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY SELECT m.tenant_id, m.session_id, m.call_id, greatest(m.created_at, m.reported_at) FROM model_calls m
        WHERE m.expires_at < now() ORDER BY m.expires_at LIMIT most;
END
$$;

-- Whose data is to go after a time.
CREATE FUNCTION palimpsest_across_retention() RETURNS TABLE (tenant_id UUID)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY SELECT r.tenant_id FROM retention r WHERE num_nonnulls(r.session_days, r.idle_days, r.call_days,
        r.compaction_days, r.change_days, r.delivery_days) > 0 ORDER BY 1;
END
$$;

-- Erasures that nobody works at although they are not done.
CREATE FUNCTION palimpsest_across_erasures() RETURNS TABLE (tenant_id UUID, id UUID)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    RETURN QUERY SELECT e.tenant_id, e.id FROM erasures e WHERE e.finished_at IS NULL AND NOT EXISTS (
        SELECT FROM pgqueuer q WHERE q.dedupe_key = 'erase:' || e.id AND q.status IN ('queued', 'picked'));
END
$$;

DO $$
DECLARE
    across REGPROCEDURE;
BEGIN
    FOREACH across IN ARRAY ARRAY['palimpsest_across_expired(integer)', 'palimpsest_across_retention()',
                                  'palimpsest_across_erasures()']::regprocedure[]
    LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', across);
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO palimpsest_app', across);
    END LOOP;
END
$$;

SELECT set_config('search_path', current_setting('palimpsest.search_path'), true);
