-- How many decisions a session has seen, so that whoever holds what was read of it can tell.
ALTER TABLE sessions ADD COLUMN decisions BIGINT DEFAULT '0' NOT NULL;

CREATE TABLE visibility (
    session_id UUID NOT NULL,
    seq BIGINT NOT NULL,
    decision BIGINT NOT NULL,
    action TEXT NOT NULL,
    tenant_id UUID NOT NULL,
    head BIGINT NOT NULL,
    replacement TEXT,
    path TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT visibility_pkey PRIMARY KEY (session_id, seq, decision, action),
    CONSTRAINT visibility_action_check CHECK (action IN ('hide', 'show', 'pin', 'unpin')),
    CONSTRAINT visibility_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (session_id) ON DELETE CASCADE
);
