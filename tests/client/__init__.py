"""The Python client against a real server, with the real SDKs, and the providers' stand-ins at the wire."""
