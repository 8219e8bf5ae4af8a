DROP FUNCTION palimpsest_hits(UUID, BIGINT[], BIGINT, BIGINT, BIGINT[]);
DROP FUNCTION palimpsest_across_purge(TEXT, INTEGER);
DROP FUNCTION palimpsest_across_layers(UUID, TEXT, INTEGER, INTEGER);
DROP FUNCTION palimpsest_across_delivery(UUID, UUID);
DROP FUNCTION palimpsest_across_degraded(DOUBLE PRECISION, INTEGER);
DROP FUNCTION palimpsest_across_deliveries(DOUBLE PRECISION, INTEGER);
DROP FUNCTION palimpsest_across_compactions(DOUBLE PRECISION);
DROP FUNCTION palimpsest_across_keys_made();
DROP FUNCTION palimpsest_across_key(BYTEA);
DROP FUNCTION palimpsest_wall(REGCLASS);

LOCK TABLE sessions, appends, events, views, epochs, model_calls, summaries, compactions, redactions, visibility, layers,
    search_heads, search, change_counts, changes, webhooks, deliveries, policies, calibrations, api_keys, tenants
    IN ACCESS EXCLUSIVE MODE;

DO $$
DECLARE
    walled REGCLASS;
BEGIN
    FOR walled IN SELECT polrelid FROM pg_policy WHERE polname = 'palimpsest_tenant'
    LOOP
        EXECUTE format('DROP POLICY palimpsest_tenant ON %s', walled);
        EXECUTE format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY', walled);
        EXECUTE format('REVOKE ALL ON %s FROM palimpsest_app', walled);
    END LOOP;
    EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM palimpsest_app', current_schema());
END
$$;
REVOKE ALL ON pgqueuer, pgqueuer_log, pgqueuer_schedules, pgqueuer_statistics FROM palimpsest_app;
REVOKE ALL ON SEQUENCE pgqueuer_id_seq, pgqueuer_schedules_id_seq, pgqueuer_statistics_id_seq FROM palimpsest_app;
REVOKE ALL ON FUNCTION palimpsest_compact(UUID, UUID), palimpsest_deliver(UUID, UUID),
    palimpsest_change(UUID, UUID, TEXT, BIGINT, JSON) FROM palimpsest_app;
