DROP TABLE provider_spend;
DROP INDEX sessions_named_idx;
DROP INDEX api_keys_listed_idx;
UPDATE api_keys SET revoked_at = now()
WHERE revoked_at IS NULL AND (expires_at IS NOT NULL OR session_prefix IS NOT NULL);
ALTER TABLE api_keys DROP COLUMN last_used_at;
ALTER TABLE api_keys DROP COLUMN session_prefix;
ALTER TABLE api_keys DROP COLUMN expires_at;
