-- The condition is looked at only where one of these columns is set, which no append does: to prepare it for an update
-- takes as long as writing the row.
CREATE OR REPLACE TRIGGER session_changed
    BEFORE UPDATE OF model, policy_name, policy_version, estimator, outside_tokens, decisions, layers_version, redactions
    ON sessions FOR EACH ROW
    WHEN ((OLD.model, OLD.policy_name, OLD.policy_version, OLD.estimator, OLD.outside_tokens, OLD.decisions,
           OLD.layers_version, OLD.redactions)
          IS DISTINCT FROM
          (NEW.model, NEW.policy_name, NEW.policy_version, NEW.estimator, NEW.outside_tokens, NEW.decisions,
           NEW.layers_version, NEW.redactions))
    EXECUTE FUNCTION palimpsest_session_changed();

-- Where a job waits or runs, the queue is only read. The queue's trigger notifies for every statement that would insert,
-- and of the transactions of a server that notify only one at a time can commit. Whoever asks for something new holds the
-- session's row, as does the job that gives up its key, so what is read here is how it stands.
CREATE OR REPLACE FUNCTION palimpsest_compact(session UUID, tenant UUID) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM pgqueuer WHERE dedupe_key = 'compact:' || session AND status IN ('queued', 'picked')) THEN
        RETURN false;
    END IF;
    INSERT INTO pgqueuer (priority, entrypoint, payload, dedupe_key, status)
    VALUES (0, 'compact', convert_to(session || ' ' || tenant, 'UTF8'), 'compact:' || session, 'queued')
    ON CONFLICT (dedupe_key)
        WHERE ((status = ANY (ARRAY['queued'::pgqueuer_status, 'picked'::pgqueuer_status])) AND (dedupe_key IS NOT NULL))
        DO NOTHING;
    RETURN FOUND;
END
$$;

-- New entries wait in a list, which every search reads as well, and are sorted into the index when it holds 512 kB.
ALTER INDEX search_terms_idx SET (fastupdate = on, gin_pending_list_limit = 512);
