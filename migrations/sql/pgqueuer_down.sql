-- pgqueuer 1.6.0's own removal (build_uninstall_query).
DROP TRIGGER IF EXISTS tg_pgqueuer_changed ON pgqueuer;
DROP FUNCTION IF EXISTS fn_pgqueuer_changed;
DROP TABLE IF EXISTS pgqueuer;
DROP TABLE IF EXISTS pgqueuer_log;
DROP TABLE IF EXISTS pgqueuer_schedules;
DROP TABLE IF EXISTS pgqueuer_statistics;
DROP TYPE IF EXISTS pgqueuer_status;
DROP TYPE IF EXISTS pgqueuer_statistics_status;
