"""Every operation of the API, named as in its document: a function from arguments to the request, without any I/O.

`palimpsest.client` and `palimpsest.session` make methods of them, for both clients. An argument that is None is left
out, so that the server's own default applies.
"""
