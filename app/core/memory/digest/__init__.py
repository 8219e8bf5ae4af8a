"""Digest: the facts of a span that rules find, such as files, commands, checks, names and the words of users."""
