"""Session ids derived from a framework's own names."""

from __future__ import annotations

import re
from hashlib import blake2b

READABLE_CHARS = 100
_NOT_OURS = re.compile(r"[^A-Za-z0-9._@-]")


def session_name(*names: str) -> str:
    """Join names by colons; if the server would not accept the result, shorten it and append a digest of the names.

    Different names never give the same id.
    """
    joined = ":".join(names)
    taken = ":".join(_NOT_OURS.sub("-", name) for name in names)
    if taken == joined and 0 < len(joined) <= READABLE_CHARS:
        return joined
    digest = blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return f"{taken[:READABLE_CHARS]}:{digest}"
