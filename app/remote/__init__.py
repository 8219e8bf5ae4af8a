"""The server as the commands reach it: which one, and over HTTP."""
