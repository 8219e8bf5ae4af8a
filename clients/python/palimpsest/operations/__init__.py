"""Every operation of the API, named as in its document: a function from arguments to the request, without any I/O.

`palimpsest.client` and `palimpsest.session` turn them into methods of both clients. An argument that is None is not
sent, so that the server's default applies.
"""
