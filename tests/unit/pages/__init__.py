"""Pure parts of the pages."""
