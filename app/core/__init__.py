"""The pure core: frozen values in, values out; no async, no I/O, no clock, no randomness."""
