-- Grows with every change of a session that is no append: together with the head it tells whether what was read of the
-- session still holds. What changes it is listed here and nowhere else; for an append the condition is all there is.
ALTER TABLE sessions ADD COLUMN version BIGINT DEFAULT '0' NOT NULL;

CREATE FUNCTION palimpsest_session_changed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := OLD.version + 1;
    RETURN NEW;
END
$$;

CREATE TRIGGER session_changed BEFORE UPDATE ON sessions FOR EACH ROW
    WHEN ((OLD.model, OLD.policy_name, OLD.policy_version, OLD.estimator, OLD.outside_tokens, OLD.decisions,
           OLD.layers_version, OLD.redactions)
          IS DISTINCT FROM
          (NEW.model, NEW.policy_name, NEW.policy_version, NEW.estimator, NEW.outside_tokens, NEW.decisions,
           NEW.layers_version, NEW.redactions))
    EXECUTE FUNCTION palimpsest_session_changed();
