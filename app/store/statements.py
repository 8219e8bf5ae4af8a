"""SQL with named parameters (`:seq`), which the driver is given by number."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

STATEMENTS_KNOWN_MAX: Final = 1_000
PARAMETER: Final = re.compile(r"(?<![:\w]):([a-z][a-z0-9_]*)")
"""A name after one colon: neither a cast (`::bigint`), nor part of a word or a number (`HH24:MI`)."""


@lru_cache(maxsize=STATEMENTS_KNOWN_MAX)
def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with its parameters numbered, as the protocol wants them, and their names in that order."""
    names = tuple(dict.fromkeys(PARAMETER.findall(sql)))
    return PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", sql), names


def bind(sql: str, values: Mapping[str, object]) -> tuple[Any, ...]:
    """Return the driver's arguments for a statement. Raises TypeError unless `values` has exactly its parameters."""
    text, names = numbered(sql)
    if len(values) != len(names) or not all(map(values.__contains__, names)):
        raise TypeError(f"the statement has the parameters {sorted(names)}, given were {sorted(values)}")
    return text, *map(values.__getitem__, names)
