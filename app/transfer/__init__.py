"""Transfer: files into sessions, and sessions into files."""
