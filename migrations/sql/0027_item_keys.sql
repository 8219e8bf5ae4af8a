-- The key with which a tenant's compaction items are sealed. It reveals no content: an item only names a place in a log,
-- which is read with the tenant's own rights. It never changes, so that items stay readable.
CREATE TABLE item_keys (
    tenant_id UUID NOT NULL,
    key BYTEA NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT now() NOT NULL,
    CONSTRAINT item_keys_pkey PRIMARY KEY (tenant_id),
    CONSTRAINT item_keys_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (tenant_id)
);

SELECT palimpsest_wall('item_keys');
