"""Previews: contexts that are rendered and not recorded."""
