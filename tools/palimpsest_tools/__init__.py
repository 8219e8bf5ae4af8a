"""The commands that use a running Palimpsest server: `replay`, `explain`, `verify`, `import` and `export`."""

VERSION = "0.3.0"
