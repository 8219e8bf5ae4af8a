"""A list of rows as one column of a statement, and how it is read.

An array of records is the quickest. A record without a type of its own cannot leave the node that made it: of a
distributed database a list comes as JSON.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Lists:
    """How a statement has its lists: as arrays of records or as JSON."""

    as_json: bool

    def of(self, columns: str, source: str) -> str:
        """Return the SQL of a list of rows; `source` is what follows the columns in a SELECT, from its FROM on."""
        if self.as_json:
            rows = f"SELECT json_build_array({columns}) AS columns {source}"
            return f"(SELECT coalesce(json_agg(one.columns), '[]') FROM ({rows}) AS one)"
        return f"ARRAY(SELECT ROW({columns}) {source})"

    def text(self, column: str) -> str:
        """Return the SQL of a JSON column that is to come as its text."""
        return f"({column})::text" if self.as_json else column


ARRAYS: Final = Lists(as_json=False)
JSON: Final = Lists(as_json=True)


def read(text: str, floats: Sequence[int] = ()) -> list[list[Any]]:
    """Return the rows of a list that came as JSON; `floats` are the places of the columns that are floats."""
    rows: list[list[Any]] = json.loads(text)
    for row in rows:
        for place in floats:
            row[place] = None if row[place] is None else float(row[place])
    return rows
