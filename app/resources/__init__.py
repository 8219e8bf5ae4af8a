"""One package a resource of the API: `routes` (operations and schemas) and `service` (load, call the core, store)."""
