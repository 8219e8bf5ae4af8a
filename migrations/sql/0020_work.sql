-- What workers have done, of all tenants together: metrics of processes that nobody can ask. They only grow.
-- `kind` is summary or delivery, `maker` who wrote the summary. `bound` is the bucket of a histogram that `seconds`, from
-- when it was due to when it was done, falls into.
CREATE TABLE work_counts (
    kind TEXT NOT NULL,
    maker TEXT NOT NULL,
    outcome TEXT NOT NULL,
    bound DOUBLE PRECISION NOT NULL,
    number BIGINT NOT NULL,
    seconds DOUBLE PRECISION NOT NULL,
    input_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    newest_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT now(),
    CONSTRAINT work_counts_pkey PRIMARY KEY (kind, maker, outcome, bound)
);

GRANT SELECT, INSERT, UPDATE ON work_counts TO palimpsest_app;
