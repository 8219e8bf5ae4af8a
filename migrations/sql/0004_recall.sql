-- Up to which seq a session can be searched, and what its entries come to.
CREATE TABLE search_heads (
    session_id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    head BIGINT DEFAULT '0' NOT NULL,
    entries INTEGER DEFAULT '0' NOT NULL,
    length BIGINT DEFAULT '0' NOT NULL,
    CONSTRAINT search_heads_pkey PRIMARY KEY (session_id),
    CONSTRAINT search_heads_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (session_id) ON DELETE CASCADE
);

-- Terms are hashes of a word and the session, so that the index on them holds each session's apart and no words.
CREATE TABLE search (
    session_id UUID NOT NULL,
    seq BIGINT NOT NULL,
    tenant_id UUID NOT NULL,
    length INTEGER NOT NULL,
    terms BIGINT[] NOT NULL,
    counts SMALLINT[] NOT NULL,
    CONSTRAINT search_pkey PRIMARY KEY (session_id, seq),
    CONSTRAINT search_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (session_id) ON DELETE CASCADE
);

CREATE INDEX search_terms_idx ON search USING gin (terms) WITH (fastupdate = off);
