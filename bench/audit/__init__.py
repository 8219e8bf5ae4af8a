"""How long the audit query takes over many records of calls."""
