ALTER TABLE model_calls
    ADD COLUMN clock TIMESTAMP WITH TIME ZONE,
    ADD COLUMN window_tokens INTEGER,
    ADD COLUMN outside_tokens INTEGER,
    ADD COLUMN tools_tokens INTEGER,
    ADD COLUMN system_tokens INTEGER,
    ADD COLUMN ephemeral_tokens INTEGER,
    ADD COLUMN breakpoint_tokens INTEGER[],
    ADD COLUMN breakpoint_blocks INTEGER[];

-- Records are immutable: a new type fills the columns as the table is written anew, once, past the trigger that refuses
-- updates. Meanwhile nothing else reads or writes the table.
ALTER TABLE model_calls
    ALTER COLUMN clock TYPE TIMESTAMP WITH TIME ZONE USING (manifest ->> 'now')::timestamptz,
    ALTER COLUMN window_tokens TYPE INTEGER USING (manifest ->> 'window')::integer,
    ALTER COLUMN outside_tokens TYPE INTEGER USING (manifest ->> 'outside')::integer,
    ALTER COLUMN tools_tokens TYPE INTEGER USING (manifest #>> '{by_source,tools}')::integer,
    ALTER COLUMN system_tokens TYPE INTEGER USING (manifest #>> '{by_source,system}')::integer,
    ALTER COLUMN ephemeral_tokens TYPE INTEGER USING (manifest #>> '{by_source,ephemeral}')::integer,
    ALTER COLUMN breakpoint_tokens TYPE INTEGER[] USING translate(manifest ->> 'breakpoint_tokens', '[]', '{}')::integer[],
    ALTER COLUMN breakpoint_blocks TYPE INTEGER[] USING translate(manifest ->> 'breakpoint_blocks', '[]', '{}')::integer[];
