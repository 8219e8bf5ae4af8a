DO $$
BEGIN
    IF EXISTS (SELECT FROM content_keys WHERE wrapped IS NOT NULL) THEN
        RAISE EXCEPTION 'contents are sealed with these keys: without them nothing of them could be read again';
    END IF;
END
$$;
DROP TABLE content_keys;
