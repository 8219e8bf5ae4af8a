"""The server as the commands reach it: which one, and over HTTP; and how one that cannot go on ends."""
