DO $$
BEGIN
    IF EXISTS (SELECT FROM content_keys) THEN
        RAISE EXCEPTION 'contents are sealed with keys in content_keys, which the version before does not know';
    END IF;
END
$$;
DROP TABLE content_keys;
