-- Evictions are decided by an epoch and do not change within it: they are kept there, and calls refer to them.
ALTER TABLE epochs ADD COLUMN evictions JSON DEFAULT '[]' NOT NULL;
ALTER TABLE epochs ADD COLUMN evicted INT8MULTIRANGE DEFAULT '{}' NOT NULL;
ALTER TABLE epochs ADD COLUMN changed_seq BIGINT DEFAULT '0' NOT NULL;
ALTER TABLE epochs ADD COLUMN stable_tokens INTEGER DEFAULT '0' NOT NULL;

-- What the provider counted for the view's last call that reported it.
ALTER TABLE views ADD COLUMN reported_call UUID;
ALTER TABLE views ADD COLUMN reported_epoch INTEGER;
ALTER TABLE views ADD COLUMN reported_head BIGINT;
ALTER TABLE views ADD COLUMN reported_tokens INTEGER;
ALTER TABLE views ADD COLUMN reported_counted INTEGER;

ALTER TABLE model_calls ADD COLUMN counted INTEGER;
ALTER TABLE model_calls ADD COLUMN evicted_tokens INTEGER DEFAULT '0' NOT NULL;
ALTER TABLE model_calls ADD COLUMN evicted_class SMALLINT DEFAULT '0' NOT NULL;
ALTER TABLE model_calls ADD COLUMN expires_at TIMESTAMP WITH TIME ZONE;
ALTER TABLE model_calls ADD COLUMN retry_of UUID;
ALTER TABLE model_calls ADD COLUMN reported_at TIMESTAMP WITH TIME ZONE;
ALTER TABLE model_calls ADD COLUMN input_tokens INTEGER;
ALTER TABLE model_calls ADD COLUMN cache_read_tokens INTEGER;
ALTER TABLE model_calls ADD COLUMN cache_write_tokens INTEGER;
ALTER TABLE model_calls ADD COLUMN output_tokens INTEGER;
ALTER TABLE model_calls ADD COLUMN latency_ms INTEGER;
ALTER TABLE model_calls ADD COLUMN error JSON;
ALTER TABLE model_calls ADD COLUMN overflow BOOLEAN DEFAULT false NOT NULL;

-- A call's outcome comes later: room for it on the page.
ALTER TABLE model_calls SET (fillfactor = 85);

DROP INDEX model_calls_view_idx;
CREATE INDEX model_calls_epoch_idx ON model_calls (session_id, view, epoch, call_id);
CREATE INDEX model_calls_listed_idx ON model_calls (tenant_id, created_at DESC, call_id DESC);
CREATE INDEX model_calls_model_idx ON model_calls (tenant_id, model, created_at DESC, call_id DESC);
CREATE INDEX model_calls_evicted_idx ON model_calls (tenant_id, evicted_class, created_at DESC, call_id DESC) WHERE evicted_class > 0;
CREATE INDEX model_calls_overflow_idx ON model_calls (tenant_id, created_at DESC, call_id DESC) WHERE overflow;
CREATE INDEX model_calls_expires_idx ON model_calls (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX summaries_id_idx ON summaries (id);

CREATE TABLE calibrations (
    tenant_id UUID NOT NULL,
    model TEXT NOT NULL,
    estimator TEXT NOT NULL,
    samples JSON NOT NULL,
    reported BIGINT NOT NULL,
    ratio DOUBLE PRECISION NOT NULL,
    margin DOUBLE PRECISION NOT NULL,
    window_tokens INTEGER,
    window_asked INTEGER,
    version INTEGER DEFAULT '0' NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT calibrations_pkey PRIMARY KEY (tenant_id, model, estimator),
    CONSTRAINT calibrations_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenants (tenant_id)
);

-- Of a call's record only its outcome may change, and it goes when it has expired or its session is erased.
CREATE FUNCTION palimpsest_recorded() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    outcome CONSTANT TEXT[] := '{reported_at,input_tokens,cache_read_tokens,cache_write_tokens,output_tokens,latency_ms,error,overflow}';
BEGIN
    IF TG_OP = 'DELETE' AND (OLD.expires_at < now()
                             OR OLD.session_id::text = current_setting('palimpsest.erasing', true)) THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' AND to_jsonb(OLD) - outcome = to_jsonb(NEW) - outcome THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION '% rows are immutable but for their outcome', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER model_calls_recorded BEFORE UPDATE OR DELETE ON model_calls
    FOR EACH ROW EXECUTE FUNCTION palimpsest_recorded();
CREATE TRIGGER model_calls_not_truncated BEFORE TRUNCATE ON model_calls
    FOR EACH STATEMENT EXECUTE FUNCTION palimpsest_immutable();
