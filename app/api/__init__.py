"""HTTP: parse the request, call one service, print the answer."""
