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
