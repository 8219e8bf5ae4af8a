-- The key that a tenant's contents are sealed with, wrapped by the operator's key, which the database never has. A dropped
-- key stays as a row without one: nothing may be sealed for that tenant again as if it were new.
CREATE TABLE content_keys (
    tenant_id UUID NOT NULL,
    wrapped BYTEA,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL DEFAULT now(),
    dropped_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT content_keys_pkey PRIMARY KEY (tenant_id),
    CONSTRAINT content_keys_tenant_id_fkey FOREIGN KEY (tenant_id) REFERENCES tenants (tenant_id),
    CONSTRAINT content_keys_dropped_check CHECK ((wrapped IS NULL) = (dropped_at IS NOT NULL))
);

SELECT palimpsest_wall('content_keys');
REVOKE UPDATE, DELETE ON content_keys FROM palimpsest_app;
