-- A key works until it expires, for the sessions whose names begin with its prefix; NULL: for ever, for all.
ALTER TABLE api_keys ADD COLUMN expires_at TIMESTAMP WITH TIME ZONE;
ALTER TABLE api_keys ADD COLUMN session_prefix TEXT;
-- To the minute, about.
ALTER TABLE api_keys ADD COLUMN last_used_at TIMESTAMP WITH TIME ZONE;

CREATE INDEX api_keys_listed_idx ON api_keys (tenant_id, created_at DESC, key_id DESC);

-- The sessions of a prefix, whatever the database's own collation is.
CREATE INDEX sessions_named_idx ON sessions (tenant_id, external_id text_pattern_ops);

-- What a tenant's summaries have cost on a day (UTC), in tokens: of requests that have ended, and reserved for those
-- under way (and for those whose process died under them). `refused`: requests that were not made, since no room was left.
CREATE TABLE provider_spend (
    tenant_id UUID NOT NULL,
    day DATE NOT NULL,
    spent BIGINT NOT NULL,
    reserved BIGINT NOT NULL,
    refused BIGINT NOT NULL,
    CONSTRAINT provider_spend_pkey PRIMARY KEY (tenant_id, day)
);

CREATE INDEX provider_spend_day_idx ON provider_spend (day);

SELECT palimpsest_wall('provider_spend');

-- The functions below find their tables where this one does, whatever their caller's search path is.
SELECT set_config('palimpsest.search_path', current_setting('search_path'), true),
       set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);

-- Summaries that a model was meant to write are not tried again on a day on which their tenant may spend no more.
CREATE OR REPLACE FUNCTION palimpsest_across_degraded(older_than DOUBLE PRECISION, most INTEGER)
RETURNS TABLE (session_id UUID, tenant_id UUID)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT DISTINCT s.session_id, s.tenant_id FROM summaries s
    WHERE s.status = 'live' AND s.degraded AND s.created_at < now() - make_interval(secs => older_than)
      AND NOT EXISTS (SELECT FROM provider_spend p WHERE p.tenant_id = s.tenant_id
                      AND p.day = (now() AT TIME ZONE 'UTC')::date AND p.refused > 0) LIMIT most
$$;

-- What operators are told of all tenants together.
CREATE FUNCTION palimpsest_across_spend() RETURNS TABLE (spent BIGINT, reserved BIGINT, refused BIGINT)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT coalesce(sum(p.spent), 0)::bigint, coalesce(sum(p.reserved), 0)::bigint, coalesce(sum(p.refused), 0)::bigint
    FROM provider_spend p WHERE p.day = (now() AT TIME ZONE 'UTC')::date
$$;
REVOKE ALL ON FUNCTION palimpsest_across_spend() FROM PUBLIC;
GRANT EXECUTE ON FUNCTION palimpsest_across_spend() TO palimpsest_app;

SELECT set_config('search_path', current_setting('palimpsest.search_path'), true);
