"""A client that applies a client plan to its own messages and compares the result with the request."""

from collections.abc import Iterator, Sequence
from typing import Any

from app.core.log.conversation import pieces
from app.core.render.formats import FORMATS

Json = dict[str, Any]


def event_pieces(events: Sequence[Json]) -> list[tuple[str, ...]]:
    """Return events as (type, call id, part) tuples, one a part; a tool call is one, with its tool and arguments."""
    found: list[tuple[str, ...]] = []
    for event in events:
        texts = pieces(event)
        if texts is None:
            continue
        kind, call_id, *rest = texts
        if event["type"] == "tool.call":
            found.append((kind, call_id, *rest))
        else:
            found += [(kind, call_id, part) for part in rest[1:]]  # without the error flag
    return found


def request_pieces(form: str, request: Json) -> list[tuple[str, ...]]:
    """Return the pieces of a request."""
    return event_pieces(
        FORMATS[form].read(request[{"openai-responses": "input", "gemini": "contents"}.get(form, "messages")])
    )


def apply_plan(form: str, messages: Sequence[Json], answer: Json) -> list[tuple[str, ...]]:
    """Return the pieces of the client's messages after applying the response's plan to them."""
    groups = FORMATS[form].reader(messages)
    assert [one["index"] for one in answer["plan"]] == list(range(len(messages)))
    before: dict[int, list[Json]] = {}
    for one in answer["inserted"]:
        before.setdefault(one["before"], []).append(_inserted(one))
    events: list[Json] = []
    for index, (group, plan) in enumerate(zip(groups, answer["plan"], strict=True)):
        events += [*before.pop(index, []), *_applied(group, plan)]
    events += before.pop(len(messages), [])
    assert not before
    return event_pieces(events)


def _inserted(one: Json) -> Json:
    if one["kind"] == "pending":
        return {"type": "tool.result", "call_id": one["call_id"], "content": one["text"]}
    return {"type": "system.message" if one["role"] == "system" else "user.message", "content": one["text"]}


def _applied(group: Sequence[Json], plan: Json) -> Iterator[Json]:
    if plan["action"] == "drop":
        return
    chained = [event for event in group if pieces(event) is not None]
    parts = plan.get("parts") or [{"action": plan["action"], "text": plan.get("text")} for _ in chained]
    if group and group[0]["type"] == "system.prompt":
        return
    for event, part in zip(chained, parts, strict=True):
        if part["action"] == "keep":
            yield event
        elif part["action"] == "replace":
            other = {"arguments": part["text"]} if event["type"] == "tool.call" else {"content": part["text"]}
            yield {**event, **other, "native": None}
