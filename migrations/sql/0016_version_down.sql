DROP TRIGGER session_changed ON sessions;
DROP FUNCTION palimpsest_session_changed();
ALTER TABLE sessions DROP COLUMN version;
