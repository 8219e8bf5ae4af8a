CREATE OR REPLACE TRIGGER session_changed BEFORE UPDATE ON sessions FOR EACH ROW
    WHEN ((OLD.model, OLD.policy_name, OLD.policy_version, OLD.estimator, OLD.outside_tokens, OLD.decisions,
           OLD.layers_version, OLD.redactions)
          IS DISTINCT FROM
          (NEW.model, NEW.policy_name, NEW.policy_version, NEW.estimator, NEW.outside_tokens, NEW.decisions,
           NEW.layers_version, NEW.redactions))
    EXECUTE FUNCTION palimpsest_session_changed();

CREATE OR REPLACE FUNCTION palimpsest_compact(session UUID, tenant UUID) RETURNS BOOLEAN LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO pgqueuer (priority, entrypoint, payload, dedupe_key, status)
    VALUES (0, 'compact', convert_to(session || ' ' || tenant, 'UTF8'), 'compact:' || session, 'queued')
    ON CONFLICT (dedupe_key)
        WHERE ((status = ANY (ARRAY['queued'::pgqueuer_status, 'picked'::pgqueuer_status])) AND (dedupe_key IS NOT NULL))
        DO NOTHING;
    RETURN FOUND;
END
$$;

ALTER INDEX search_terms_idx RESET (gin_pending_list_limit);
ALTER INDEX search_terms_idx SET (fastupdate = off);
SELECT gin_clean_pending_list('search_terms_idx');
