"""Compactions that clients request within an ordinary call, by a field of its body that many upstreams refuse."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from app.core.log.events import Json
from app.core.wire.bodies import Body, parse
from app.core.wire.compacted import FORMAT, LISTS, TYPES, sealed_in
from app.core.wire.replies import mapping, objects

FIELD: Final = "context_management"
EDIT: Final = "compact_20260112"
"""The type of Anthropic's edit that requests a compaction."""
BETA: Final = "compact-2026-01-12"
"""The name of that edit among the beta features that a call enables."""
TRIGGER_TOKENS: Final = 150_000
"""The trigger of Anthropic's edit if it states none."""


@dataclass(frozen=True, slots=True)
class RequestedCompaction:
    """A compaction to make if a call's list has more than `tokens`; None: more than the window.

    `pauses`: the item is to be returned alone, without a reply.
    """

    tokens: int | None
    pauses: bool = False


def split_request(form: str, body: Body) -> tuple[Body, RequestedCompaction | None]:
    """Return a call's body without the request for a compaction in it, and that request.

    The body is returned as it is, with None, if there is no valid request, or if the list holds a compaction of the
    provider's own: then the request is the provider's, too.
    """
    found = None
    if FIELD in body.value and form in _SPLITS and not _holds_foreign_item(form, body):
        found = _SPLITS[form](body.value)
    if found is None:
        return body, None
    request, rest = found
    written = {name: json.dumps(value) for name, value in rest.items() if value}
    without = frozenset(name for name, value in rest.items() if not value)
    return parse(body.with_members(written, without=without).encode()), request


_Split = tuple[RequestedCompaction, Mapping[str, Json]] | None
"""A request, and the values of the fields that held it, without it; None or an empty value: the field is removed."""


def _split_entries(call: Mapping[str, Json]) -> _Split:
    """Split the field of a Responses call, a list."""
    entries = call[FIELD]
    own, others = _divide(entries, "compaction")
    stated = own.get("compact_threshold")
    tokens = _count_or_none(stated)
    if not own or (tokens is None) != (stated is None):
        return None
    return RequestedCompaction(tokens), {FIELD: others}


def _split_edits(call: Mapping[str, Json]) -> _Split:
    """Split the field of an Anthropic call, an object with a list, and the list of betas of some upstreams' bodies."""
    field = mapping(call[FIELD])
    own, others = _divide(field.get("edits"), EDIT)
    trigger = own.get("trigger")
    tokens = TRIGGER_TOKENS if trigger is None else _count_or_none(mapping(trigger).get("value"))
    if not own or tokens is None or mapping(trigger).get("type", "input_tokens") != "input_tokens":
        return None
    rest: dict[str, Json] = {FIELD: {**field, "edits": others} if others or len(field) > 1 else None}
    if isinstance(betas := call.get("anthropic_beta"), list):
        rest["anthropic_beta"] = [one for one in betas if one != BETA]
    return RequestedCompaction(tokens, own.get("pause_after_compaction") is True), rest


_SPLITS: Final[Mapping[str, Callable[[Mapping[str, Json]], _Split]]] = {
    FORMAT: _split_entries,
    "anthropic": _split_edits,
}


def _divide(entries: Json, kind: str) -> tuple[Mapping[str, Json], list[Json]]:
    """Return the first entry of a type, empty if there is none, and the entries of other types."""
    listed = entries if isinstance(entries, list) else []
    own = next((one for one in objects(listed) if one.get("type") == kind), {})
    return own, [one for one in listed if mapping(one).get("type") != kind]


def _count_or_none(value: Json) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _holds_foreign_item(form: str, body: Body) -> bool:
    """Return whether a list holds a compaction that is not ours."""
    items = objects(body.value.get(LISTS.get(form, "")))
    if form != FORMAT:
        items = [part for one in items for part in objects(one.get("content"))]
    return any(one.get("type") in TYPES and sealed_in(one) is None for one in items)
