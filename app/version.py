"""The version, in a module of its own so that the build can read it without importing anything else."""

VERSION = "0.3.0"
