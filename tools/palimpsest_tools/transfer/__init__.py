"""Import of files into a running server, and export of its sessions."""
