DROP FUNCTION palimpsest_across_spend();

SELECT set_config('palimpsest.search_path', current_setting('search_path'), true),
       set_config('search_path', quote_ident(current_schema()) || ', pg_temp', true);
CREATE OR REPLACE FUNCTION palimpsest_across_degraded(older_than DOUBLE PRECISION, most INTEGER)
RETURNS TABLE (session_id UUID, tenant_id UUID)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT AS $$
    SELECT DISTINCT s.session_id, s.tenant_id FROM summaries s
    WHERE s.status = 'live' AND s.degraded AND s.created_at < now() - make_interval(secs => older_than) LIMIT most
$$;
SELECT set_config('search_path', current_setting('palimpsest.search_path'), true);

DROP TABLE provider_spend;
DROP INDEX sessions_named_idx;
DROP INDEX api_keys_listed_idx;
UPDATE api_keys SET revoked_at = now()
WHERE revoked_at IS NULL AND (expires_at IS NOT NULL OR session_prefix IS NOT NULL);
ALTER TABLE api_keys DROP COLUMN last_used_at;
ALTER TABLE api_keys DROP COLUMN session_prefix;
ALTER TABLE api_keys DROP COLUMN expires_at;
