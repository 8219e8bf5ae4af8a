CREATE OR REPLACE TRIGGER session_changed
    BEFORE UPDATE OF model, policy_name, policy_version, estimator, outside_tokens, decisions, layers_version, redactions
    ON sessions FOR EACH ROW
    WHEN ((OLD.model, OLD.policy_name, OLD.policy_version, OLD.estimator, OLD.outside_tokens, OLD.decisions,
           OLD.layers_version, OLD.redactions)
          IS DISTINCT FROM
          (NEW.model, NEW.policy_name, NEW.policy_version, NEW.estimator, NEW.outside_tokens, NEW.decisions,
           NEW.layers_version, NEW.redactions))
    EXECUTE FUNCTION palimpsest_session_changed();
DROP TABLE chain;
DROP INDEX sessions_lines_idx;
ALTER TABLE sessions DROP COLUMN chain_tip, DROP COLUMN chained, DROP COLUMN chained_seq, DROP COLUMN number,
    DROP COLUMN root, DROP COLUMN line;
