-- The names of sessions that an erasure has erased, by their keys: who goes on under such a name without knowing of that
-- does not bring the session back. A row goes when the name is begun again with metadata, by which it can be erased again.
CREATE TABLE erased_names (
    session_id UUID NOT NULL,
    tenant_id UUID NOT NULL,
    erased_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT erased_names_pkey PRIMARY KEY (session_id)
);

SELECT palimpsest_wall('erased_names');
