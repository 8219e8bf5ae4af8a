"""The commands that use a running Palimpsest server, such as `sessions`, `explain` and `replay`."""

VERSION = "0.3.0"
