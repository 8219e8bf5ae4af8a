"""Policies by name or inline: every policy a call used is stored, immutable, under a name and a version."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from app.core.errors import NotFound
from app.core.events import Json, canonical_json
from app.core.policy import Policy, parse_policy
from app.core.presets import PRESETS
from app.store.engine import Database

INLINE: Final = "inline:"


class Policies:
    """Looks policies up and keeps those seen: they never change."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: dict[tuple[UUID, str, int], Policy] = {}

    async def resolve(self, tenant_id: UUID, given: str | Mapping[str, Any]) -> tuple[str, int]:
        """The name and version of what a request gave.

        An inline document is stored under the hash of its content. Raises InvalidPolicy or NotFound.
        """
        if isinstance(given, str):
            if given not in PRESETS:
                raise NotFound(f"there is no policy {given!r}; known: {', '.join(PRESETS)}", policy=given)
            return given, 1
        policy = parse_policy(given)
        text = canonical_json(_sorted(given))
        name = INLINE + hashlib.sha256(text.encode()).hexdigest()[:24]
        if (tenant_id, name, 1) not in self._seen:
            await self._database.execute(
                "INSERT INTO policies (tenant_id, name, version, document) VALUES ($1, $2, 1, $3) "
                "ON CONFLICT DO NOTHING",
                tenant_id,
                name,
                text,
            )
            self._remember((tenant_id, name, 1), policy)
        return name, 1

    async def get(self, tenant_id: UUID, ref: tuple[str, int]) -> Policy:
        """The policy of a stored reference. Raises NotFound."""
        name, version = ref
        if name in PRESETS:
            return PRESETS[name]
        key = (tenant_id, name, version)
        if key not in self._seen:
            row = await self._database.fetchrow(
                "SELECT document FROM policies WHERE tenant_id = $1 AND name = $2 AND version = $3", *key
            )
            if row is None:
                raise NotFound(f"there is no policy {name!r} in version {version}", policy=name)
            self._remember(key, parse_policy(json.loads(row["document"])))
        return self._seen[key]

    def _remember(self, key: tuple[UUID, str, int], policy: Policy) -> None:
        if len(self._seen) >= 1024:
            self._seen.pop(next(iter(self._seen)))
        self._seen[key] = policy


def _sorted(value: Json) -> Json:
    """Keys in one order, so that equal documents get equal names."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return value
