"""The client's version."""

VERSION = "0.3.0"
