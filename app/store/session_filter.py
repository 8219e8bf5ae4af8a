"""Conditions on the sessions of a list. No index serves those on model and metadata, so they are applied to at most
SCAN_MAX sessions per page. A page cut off by this limit returns the position to continue from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from app.core.log.appends import has_values
from app.core.log.events import Json, canonical_json
from app.core.log.segments import row_name

SCAN_MAX: Final = 2_000
ORDER: Final = "ORDER BY s.created_at DESC, s.session_id DESC"

ListPosition = tuple[datetime, UUID]
"""A session's position in the list: its time of creation and its key."""

_FIRST: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Conditions that must all hold; None is no condition. `since` and `until` are on the time of creation.

    `metadata` are fields and values that a session's metadata must contain, at any depth. Lists in it must be equal if
    `exact`, otherwise contain all of these items.
    """

    parent: str | None = None
    prefix: str = ""
    since: datetime | None = None
    until: datetime | None = None
    model: str | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    exact: bool = False

    @property
    def scans(self) -> bool:
        """Whether some conditions have no index, so that sessions must be scanned."""
        return self.model is not None or bool(self.metadata)

    def holds(self, model: str | None, *metadata: Mapping[str, Json]) -> bool:
        """Return whether the conditions on model and metadata hold, the latter for any of a session's rows."""
        return (self.model is None or model == self.model) and any(
            has_values(one, self.metadata, exact=self.exact) for one in metadata
        )


def conditions(filters: SessionFilter, after: ListPosition | None) -> tuple[str, dict[str, object]]:
    """Return the SQL of the conditions that indexes serve, for sessions after `after`, and its parameters."""
    if filters.until is not None and (after is None or filters.until <= after[0]):
        after = (filters.until, _FIRST)
    created_at, last = after or (None, None)
    sql = "s.root IS NULL AND (:created_at::timestamptz IS NULL "
    sql += "OR (s.created_at, s.session_id) < (:created_at, :last::uuid))"
    values: dict[str, object] = {"created_at": created_at, "last": last}
    if filters.parent is not None:
        values["parent"] = row_name(filters.parent)
        sql += " AND s.parent = :parent"
    if filters.prefix:
        values["prefix"] = filters.prefix
        sql += f" AND {has_prefix('s.external_id', ':prefix')}"
    if filters.since is not None:
        values["since"] = filters.since
        sql += " AND s.created_at >= :since"
    return sql, values


def scan_conditions(filters: SessionFilter, floor: ListPosition | None) -> tuple[str, dict[str, object]]:
    """Return the SQL of the other conditions, for sessions down to `floor`, and its parameters.

    It selects all matching sessions and more; `SessionFilter.holds` decides. A session whose current line is another
    row always passes: that row, which may be stored elsewhere, has the model and metadata to compare. Metadata of the
    own row count as well.
    """
    sql, values = "", dict[str, object]()
    if floor is not None:
        values |= {"floor_at": floor[0], "floor_id": floor[1]}
        sql += " AND (s.created_at, s.session_id) >= (:floor_at, :floor_id)"
    if filters.model is not None:
        values["model"] = filters.model
        sql += " AND (s.line IS NOT NULL OR s.model = :model)"
    if filters.metadata:
        values["metadata"] = canonical_json(filters.metadata)
        sql += " AND (s.line IS NOT NULL OR s.metadata::jsonb @> :metadata::jsonb)"
    return sql, values


def has_prefix(names: str, prefix: str) -> str:
    """Return the SQL condition that `names` begin with the parameter `prefix`, in a form that an index serves. In byte
    order all such names are between the prefix and the prefix with a tilde, which no name contains."""
    return f"{names} ~>=~ {prefix}::text AND {names} ~<~ ({prefix}::text || '~')"
