-- A session's name means one of its lines. The first line is the row of the name itself, which says which line is meant
-- (`line`, its id; NULL: itself). Every other line is a row of its own that names that row (`root`) and has a `number`.
ALTER TABLE sessions
    ADD COLUMN line TEXT,
    ADD COLUMN root UUID,
    ADD COLUMN number INTEGER DEFAULT '1' NOT NULL,
    ADD COLUMN chained_seq BIGINT DEFAULT '0' NOT NULL,
    ADD COLUMN chained INTEGER DEFAULT '0' NOT NULL,
    ADD COLUMN chain_tip BYTEA;

CREATE INDEX sessions_lines_idx ON sessions (root, number) WHERE root IS NOT NULL;

-- For each event of a conversation the hash of all of it up to there, under the row of the session's name.
CREATE TABLE chain (
    session_id UUID NOT NULL,
    line UUID NOT NULL,
    seq BIGINT NOT NULL,
    tenant_id UUID NOT NULL,
    number INTEGER NOT NULL,
    hash BYTEA NOT NULL,
    CONSTRAINT chain_pkey PRIMARY KEY (session_id, line, seq),
    CONSTRAINT chain_session_id_fkey FOREIGN KEY(session_id) REFERENCES sessions (session_id) ON DELETE CASCADE
);
CREATE INDEX chain_hash_idx ON chain (session_id, hash);
SELECT palimpsest_wall('chain');

-- A name that moves is a change of its session: what was read of it before no longer stands.
CREATE OR REPLACE TRIGGER session_changed
    BEFORE UPDATE OF model, policy_name, policy_version, estimator, outside_tokens, decisions, layers_version, redactions,
        line
    ON sessions FOR EACH ROW
    WHEN ((OLD.model, OLD.policy_name, OLD.policy_version, OLD.estimator, OLD.outside_tokens, OLD.decisions,
           OLD.layers_version, OLD.redactions, OLD.line)
          IS DISTINCT FROM
          (NEW.model, NEW.policy_name, NEW.policy_version, NEW.estimator, NEW.outside_tokens, NEW.decisions,
           NEW.layers_version, NEW.redactions, NEW.line))
    EXECUTE FUNCTION palimpsest_session_changed();
