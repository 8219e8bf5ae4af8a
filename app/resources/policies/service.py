"""Policies by name or inline: every policy a call used is stored, immutable, under a name and a version.

A tenant's own policies are listed after the presets, which cannot be replaced. A request's `name` means the newest
version at that moment, and `name@version` that version; a session keeps the version it resolved to.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from app.core.errors import InvalidPolicy, InvalidRequest, NotFound
from app.core.log.events import Json, canonical_json
from app.core.policy.policy import DOCUMENTS, PRESETS, Policy, parse_policy
from app.core.tokens.budget import budget_for
from app.store import policies
from app.store.engine import Connection, Database
from app.store.policies import PolicyRow

INLINE: Final = "inline:"
NAME_PATTERN: Final = r"^[A-Za-z0-9._-]{1,64}$"
"""Names that a tenant may give to a policy."""
STORED_NAME_PATTERN: Final = rf"^({INLINE})?[A-Za-z0-9._-]{{1,64}}$"
"""Names under which policies are stored: also those of inline documents, made from a hash of their content."""
VERSION_MAX: Final = 2**31 - 1
DOCUMENT_BYTES_MAX: Final = 65_536
SEEN_MAX: Final = 1024

_NAME: Final = re.compile(NAME_PATTERN.removesuffix("$"))
_REFERENCE: Final = re.compile(rf"((?:{INLINE})?[A-Za-z0-9._-]{{1,64}})(?:@([1-9][0-9]{{0,9}}))?")


class ChosenPolicy(NamedTuple):
    """A policy that a request names or gives, with the name and version it is or would be stored under."""

    ref: tuple[str, int]
    policy: Policy


class Policies:
    """Stores, lists and resolves policies. Versions that were looked up are cached, since a version never changes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: dict[tuple[UUID, str, int], Policy] = {}

    async def put(self, tenant_id: UUID, name: str, document: Json) -> tuple[PolicyRow, bool]:
        """Store a document as the newest version of a policy; return that version, and whether it is new.

        Raises InvalidPolicy, or InvalidRequest for a name that is not allowed.
        """
        if _NAME.fullmatch(name) is None:
            raise InvalidRequest(f"name must match {NAME_PATTERN}", field="name")
        if name in PRESETS:
            raise InvalidRequest(f"{name!r} is a preset and cannot be changed; choose another name", field="name")
        _read(document)
        async with self._database.transaction() as tx:
            await policies.lock(tx, tenant_id)
            newest = await policies.find(tx, tenant_id, name)
            if newest is not None and newest.document == document:
                return newest, False
            added = await policies.add(tx, tenant_id, name, newest.version + 1 if newest else 1, document)
        if added is None:
            raise RuntimeError(f"a version of policy {name!r} was added past the lock")
        return added, True

    async def find(
        self, tenant_id: UUID, name: str, version: int | None = None, tx: Connection | None = None
    ) -> PolicyRow:
        """Return a version of a policy, by default the newest. Raises NotFound."""
        if name in PRESETS:
            row = _preset(name) if version in (None, 1) else None
        else:
            row = await policies.find(tx or self._database, tenant_id, name, version)
        if row is None:
            which = f"policy {name!r}" + (f" in version {version}" if version else "")
            raise NotFound(f"there is no {which}; presets: {', '.join(PRESETS)}", policy=name)
        return row

    async def page(self, tenant_id: UUID, limit: int, after: str | None) -> list[PolicyRow]:
        """Return the presets, then the tenant's policies by name, each in its newest version; no inline ones."""
        names = list(PRESETS)
        if after is None or after in PRESETS:
            presets = [_preset(name) for name in names[0 if after is None else names.index(after) + 1 :]][:limit]
            after = ""
        else:
            presets = []
        if len(presets) == limit:
            return presets
        return presets + await policies.page(self._database, tenant_id, limit - len(presets), after, INLINE)

    async def resolve(self, tenant_id: UUID, given: str | Mapping[str, Any]) -> tuple[str, int]:
        """Return the name and version of the policy that a request names or gives.

        An inline document is stored under the hash of its content. Raises InvalidPolicy or NotFound.
        """
        return (await self.chosen(tenant_id, given)).ref

    async def chosen(self, tenant_id: UUID, given: str | Mapping[str, Any]) -> ChosenPolicy:
        """Return the policy that a request names or gives; store an inline document."""
        chosen = await self.read(tenant_id, given)
        key = (tenant_id, *chosen.ref)
        if not isinstance(given, str) and key not in self._seen:
            await policies.add(self._database, *key, _sorted(given))
            self._remember(key, chosen.policy)
        return chosen

    async def read(self, tenant_id: UUID, given: str | Mapping[str, Any]) -> ChosenPolicy:
        """Return the policy that a request names or gives, without storing an inline document."""
        if not isinstance(given, str):
            policy = _read(given)
            name = INLINE + hashlib.sha256(canonical_json(_sorted(given)).encode()).hexdigest()[:24]
            return ChosenPolicy((name, 1), policy)
        reference = _REFERENCE.fullmatch(given)
        if reference is None or int(reference[2] or 1) > VERSION_MAX:
            raise NotFound(f"there is no policy {given!r}; presets: {', '.join(PRESETS)}")
        row = await self.find(tenant_id, reference[1], int(reference[2]) if reference[2] else None)
        return ChosenPolicy((row.name, row.version), await self.get(tenant_id, (row.name, row.version)))

    async def get(self, tenant_id: UUID, ref: tuple[str, int], tx: Connection | None = None) -> Policy:
        """Return the policy of a stored name and version. Raises NotFound.

        A task that holds a connection passes it as `tx`: it must never wait for another one of the same pool.
        """
        name, version = ref
        if name in PRESETS:
            return PRESETS[name]
        key = (tenant_id, name, version)
        if key not in self._seen:
            row = await self.find(tenant_id, name, version, tx)
            self._remember(key, parse_policy(row.document))
        return self._seen[key]

    def _remember(self, key: tuple[UUID, str, int], policy: Policy) -> None:
        if len(self._seen) >= SEEN_MAX:
            self._seen.pop(next(iter(self._seen)))
        self._seen[key] = policy


def _read(document: Json) -> Policy:
    """Parse a document that can be stored and leaves room in its own window. Raises InvalidPolicy."""
    try:
        size = len(json.dumps(document, ensure_ascii=False).encode())
    except (ValueError, RecursionError):  # checked first: an error could not quote such a value
        raise InvalidPolicy("contains a value that JSON cannot hold, or is nested too deeply", knob="policy") from None
    if size > DOCUMENT_BYTES_MAX:
        raise InvalidPolicy(f"takes {size} bytes, at most {DOCUMENT_BYTES_MAX}", knob="policy")
    policy = parse_policy(document)
    if policy.window_tokens is not None:
        budget_for(policy, policy.window_tokens, 0.0, outside=0)
    return policy


def _preset(name: str) -> PolicyRow:
    return PolicyRow(name, 1, DOCUMENTS[name], None)


def _sorted(value: Json) -> Json:
    """Return a value with its keys sorted, so that equal documents get equal names."""
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return value
