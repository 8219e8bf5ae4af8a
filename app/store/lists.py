"""Lists of rows as one column of a statement: their SQL, and how they are decoded.

An array of records is the fastest form. A record without a named type cannot leave the node that made it, so a
distributed database returns lists as JSON.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Lists:
    """The form of a statement's lists: arrays of records or JSON."""

    as_json: bool

    def of(self, columns: str, source: str) -> str:
        """Return the SQL of a list of rows; `source` is the SELECT's rest after the columns, from its FROM on."""
        if self.as_json:
            rows = f"SELECT json_build_array({columns}) AS columns {source}"
            return f"(SELECT coalesce(json_agg(one.columns), '[]') FROM ({rows}) AS one)"
        return f"ARRAY(SELECT ROW({columns}) {source})"

    def text(self, column: str) -> str:
        """Return the SQL that selects a JSON column as text."""
        return f"({column})::text" if self.as_json else column


ARRAYS: Final = Lists(as_json=False)
JSON: Final = Lists(as_json=True)


def read(text: str, floats: Sequence[int] = ()) -> list[list[Any]]:
    """Return the rows of a JSON list; `floats` are the indexes of float columns."""
    rows: list[list[Any]] = json.loads(text)
    for row in rows:
        for index in floats:
            row[index] = None if row[index] is None else float(row[index])
    return rows
