DROP TRIGGER model_calls_not_truncated ON model_calls;
DROP TRIGGER model_calls_recorded ON model_calls;
DROP FUNCTION palimpsest_recorded();
DROP TABLE calibrations;
DROP INDEX summaries_id_idx;
DROP INDEX model_calls_expires_idx;
DROP INDEX model_calls_overflow_idx;
DROP INDEX model_calls_evicted_idx;
DROP INDEX model_calls_model_idx;
DROP INDEX model_calls_listed_idx;
DROP INDEX model_calls_epoch_idx;
CREATE INDEX model_calls_view_idx ON model_calls (session_id, view, call_id);
ALTER TABLE model_calls RESET (fillfactor);
ALTER TABLE model_calls
    DROP COLUMN overflow, DROP COLUMN error, DROP COLUMN latency_ms, DROP COLUMN output_tokens,
    DROP COLUMN cache_write_tokens, DROP COLUMN cache_read_tokens, DROP COLUMN input_tokens, DROP COLUMN reported_at,
    DROP COLUMN retry_of, DROP COLUMN expires_at, DROP COLUMN evicted_class, DROP COLUMN evicted_tokens,
    DROP COLUMN counted;
ALTER TABLE views
    DROP COLUMN reported_counted, DROP COLUMN reported_tokens, DROP COLUMN reported_head, DROP COLUMN reported_epoch,
    DROP COLUMN reported_call;
ALTER TABLE epochs
    DROP COLUMN stable_tokens, DROP COLUMN changed_seq, DROP COLUMN evicted, DROP COLUMN evictions;
