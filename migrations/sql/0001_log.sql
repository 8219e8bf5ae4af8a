CREATE TABLE tenants (
    tenant_id UUID NOT NULL,
    name TEXT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT tenants_pkey PRIMARY KEY (tenant_id),
    CONSTRAINT tenants_name_key UNIQUE (name)
);

CREATE TABLE api_keys (
    key_id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    name TEXT NOT NULL,
    secret_sha256 BYTEA NOT NULL,
    scopes TEXT[] NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    revoked_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT api_keys_pkey PRIMARY KEY (key_id),
    CONSTRAINT api_keys_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenants (tenant_id),
    CONSTRAINT api_keys_secret_sha256_key UNIQUE (secret_sha256)
);

CREATE TABLE policies (
    tenant_id UUID NOT NULL,
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    document JSON NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT policies_pkey PRIMARY KEY (tenant_id, name, version),
    CONSTRAINT policies_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenants (tenant_id)
);

CREATE TABLE sessions (
    session_id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    external_id TEXT NOT NULL,
    policy_name TEXT DEFAULT 'default' NOT NULL,
    policy_version INTEGER DEFAULT '1' NOT NULL,
    model TEXT,
    estimator TEXT NOT NULL,
    metadata JSON DEFAULT '{}' NOT NULL,
    head BIGINT DEFAULT '0' NOT NULL,
    turns INTEGER DEFAULT '0' NOT NULL,
    turn_id TEXT,
    awaits_user BOOLEAN DEFAULT false NOT NULL,
    tokens BIGINT DEFAULT '0' NOT NULL,
    open_calls JSONB DEFAULT '{}' NOT NULL,
    system_seq BIGINT DEFAULT '0' NOT NULL,
    tools_seq BIGINT DEFAULT '0' NOT NULL,
    user_seqs BIGINT[] DEFAULT '{}' NOT NULL,
    pinned_seqs BIGINT[] DEFAULT '{}' NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT sessions_pkey PRIMARY KEY (session_id),
    CONSTRAINT sessions_tenant_id_external_id_key UNIQUE (tenant_id, external_id),
    CONSTRAINT sessions_tenant_id_fkey FOREIGN KEY(tenant_id) REFERENCES tenants (tenant_id)
)
 WITH (fillfactor = 70);

CREATE INDEX sessions_listed_idx ON sessions (tenant_id, created_at DESC, session_id DESC);

CREATE TABLE appends (
    session_id UUID NOT NULL,
    key TEXT NOT NULL,
    tenant_id UUID NOT NULL,
    request_sha256 BYTEA NOT NULL,
    answer JSON NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT appends_pkey PRIMARY KEY (session_id, key),
    CONSTRAINT appends_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (session_id) ON DELETE CASCADE
);

CREATE INDEX appends_created_at_idx ON appends (created_at);

CREATE TABLE epochs (
    session_id UUID NOT NULL,
    view TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    tenant_id UUID NOT NULL,
    head BIGINT NOT NULL,
    cause TEXT NOT NULL,
    frontier JSON NOT NULL,
    floor BIGINT NOT NULL,
    kept BIGINT[] NOT NULL,
    stubbed BIGINT[] NOT NULL,
    tokens_before INTEGER NOT NULL,
    tokens_after INTEGER NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT epochs_pkey PRIMARY KEY (session_id, view, epoch),
    CONSTRAINT epochs_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (session_id) ON DELETE CASCADE
);

CREATE TABLE events (
    session_id UUID NOT NULL,
    seq BIGINT NOT NULL,
    tenant_id UUID NOT NULL,
    turn INTEGER NOT NULL,
    type TEXT NOT NULL,
    event_id TEXT,
    call_id TEXT,
    tool TEXT,
    call_seq BIGINT,
    author TEXT,
    pinned BOOLEAN NOT NULL,
    is_error BOOLEAN NOT NULL,
    tokens INTEGER NOT NULL,
    cum_tokens BIGINT NOT NULL,
    gist TEXT,
    body JSON NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT events_pkey PRIMARY KEY (session_id, seq),
    CONSTRAINT events_seq_check CHECK (seq > 0),
    CONSTRAINT events_tokens_check CHECK (tokens >= 0),
    CONSTRAINT events_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (session_id) ON DELETE CASCADE
);

CREATE INDEX events_anchors_idx ON events (session_id, type, turn, seq) WHERE type IN ('user.message', 'system.prompt', 'tools');

CREATE INDEX events_cum_tokens_idx ON events (session_id, cum_tokens);

CREATE UNIQUE INDEX events_id_key ON events (session_id, event_id) WHERE event_id IS NOT NULL;

CREATE UNIQUE INDEX events_result_key ON events (session_id, call_seq) WHERE call_seq IS NOT NULL;

CREATE TABLE model_calls (
    session_id UUID NOT NULL,
    call_id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    view TEXT NOT NULL,
    head BIGINT NOT NULL,
    epoch INTEGER NOT NULL,
    policy_name TEXT NOT NULL,
    policy_version INTEGER NOT NULL,
    format TEXT NOT NULL,
    model TEXT,
    render_version INTEGER NOT NULL,
    manifest JSON NOT NULL,
    breakpoints BIGINT[] NOT NULL,
    estimate INTEGER NOT NULL,
    target INTEGER NOT NULL,
    sha256 BYTEA NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT model_calls_pkey PRIMARY KEY (session_id, call_id)
);

CREATE INDEX model_calls_view_idx ON model_calls (session_id, view, call_id);

CREATE TABLE views (
    session_id UUID NOT NULL,
    view TEXT NOT NULL,
    tenant_id UUID NOT NULL,
    policy_name TEXT NOT NULL,
    policy_version INTEGER NOT NULL,
    model TEXT,
    window_tokens INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    epochs INTEGER NOT NULL,
    target INTEGER NOT NULL,
    carry_tokens BIGINT NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT views_pkey PRIMARY KEY (session_id, view),
    CONSTRAINT views_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (session_id) ON DELETE CASCADE
);

-- Events, epochs and policies are never changed. Erasing a whole session is the one exception: the eraser names it in
-- the transaction-local setting palimpsest.erasing.
CREATE FUNCTION palimpsest_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND to_jsonb(OLD) ->> 'session_id' = current_setting('palimpsest.erasing', true) THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION '% rows are immutable', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER events_immutable BEFORE UPDATE OR DELETE ON events
    FOR EACH ROW EXECUTE FUNCTION palimpsest_immutable();
CREATE TRIGGER events_not_truncated BEFORE TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION palimpsest_immutable();
CREATE TRIGGER epochs_not_truncated BEFORE TRUNCATE ON epochs
    FOR EACH STATEMENT EXECUTE FUNCTION palimpsest_immutable();
CREATE TRIGGER policies_not_truncated BEFORE TRUNCATE ON policies
    FOR EACH STATEMENT EXECUTE FUNCTION palimpsest_immutable();
CREATE TRIGGER epochs_immutable BEFORE UPDATE OR DELETE ON epochs
    FOR EACH ROW EXECUTE FUNCTION palimpsest_immutable();
CREATE TRIGGER policies_immutable BEFORE UPDATE OR DELETE ON policies
    FOR EACH ROW EXECUTE FUNCTION palimpsest_immutable();
