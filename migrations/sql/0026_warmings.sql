-- Requests that kept the provider's cache of a call: without an answer of the model, and no calls of the conversation. NULL
-- tokens: the provider refused it, or did not answer. A session has few. No foreign key to the call, whose record may go
-- first; what the price depends on is copied from it.
CREATE TABLE warmings (
    session_id UUID NOT NULL,
    id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    call_id UUID NOT NULL,
    view TEXT NOT NULL,
    policy_name TEXT NOT NULL,
    policy_version INTEGER NOT NULL,
    format TEXT NOT NULL,
    model TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    input_tokens INTEGER,
    cache_read_tokens INTEGER,
    cache_write_tokens INTEGER,
    CONSTRAINT warmings_pkey PRIMARY KEY (session_id, id),
    CONSTRAINT warmings_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (session_id) ON DELETE CASCADE
);

CREATE INDEX warmings_created_idx ON warmings (tenant_id, created_at);

-- The time of the newest of them for a call of the view: its cache is warm from then on.
ALTER TABLE views ADD COLUMN warmed_at TIMESTAMP WITH TIME ZONE;

SELECT palimpsest_wall('warmings');
