"""Recorded sessions cut into short runs, for the cost of a policy to an agent that stops after a few tool calls."""

from collections.abc import Iterator
from typing import Any

Value = dict[str, Any]


def runs(value: Value, tool_calls: int) -> Iterator[Value]:
    """Cut one line of a neutral JSONL file into sessions of about `tool_calls` tool calls each, in order.

    A run holds whole messages, and ends before the message that would exceed the number. If it does not begin with a
    user message, the last one before it is put first. Values that a call used belong to its run; those whose holders
    are in an earlier run are not visible there, and not counted.
    """
    starts = list(_starts(value["messages"], tool_calls))
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(value["messages"])], strict=True), start=1):
        yield _run(value, start, end, number)


def _starts(messages: list[Value], tool_calls: int) -> Iterator[int]:
    yield 0
    made = 0
    for index, message in enumerate(messages):
        more = len(message.get("tool_calls") or ())
        if made and more and made + more > tool_calls:
            yield index
            made = 0
        made += more


def _run(value: Value, start: int, end: int, number: int) -> Value:
    messages, meta = value["messages"], value.get("meta") or {}
    asked = start
    while asked > 0 and messages[asked]["role"] != "user":
        asked -= 1
    task = [asked] if asked < start and messages[asked]["role"] == "user" else []
    picked = [*task, *range(start, end)]
    times = meta.get("ts")
    ts = None if times is None else [times[max(index, start)] for index in picked]
    results = {index for index in picked if messages[index]["role"] == "tool"}
    place = {index: n for n, index in enumerate(picked)}
    used = []
    for one in meta.get("grounding") or ():
        if start <= one["i"] < end:
            before = [index for index in picked if index < one["i"] and _holds(messages[index], one["v"])]
            kind = "tool" if before and results.issuperset(before) else "any"
            used.append({"i": place[one["i"]], "v": one["v"], "kind": kind})
    return {
        **value,
        "id": f"{value['id']}#{number}",
        "messages": [messages[index] for index in picked],
        "meta": {"prefix_tokens_est": meta.get("prefix_tokens_est"), "ts": ts, "grounding": used},
    }


def _holds(message: Value, text: str) -> bool:
    if text in str(message.get("content") or ""):
        return True
    return any(text in str(call.get("arguments")) for call in message.get("tool_calls") or ())
