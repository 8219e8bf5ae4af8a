"""Facts for readers of a call: its window, its evictions by reason, its differences from another, and its request as a
shell command.

Blocks and evictions are as the API describes them, the form in which clients have them. All work of a comparison is
bounded, so that contents of any kind may be compared while somebody waits.
"""

import json
import re
import shlex
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import quote

from app.core.log.events import canonical_json
from app.core.policy.policy import Policy
from app.core.tokens.budget import threshold

EDITS_MAX: Final = 120
STEPS_MAX: Final = 100_000
"""Most edits that a comparison finds, and most steps that it takes for them."""
WORDS_CHARS_MAX: Final = 50_000
"""Length of two texts together from which on lines are compared instead of words."""
_WORDS: Final = re.compile(r"\w+|\s+|[^\w\s]")
_LINES: Final = re.compile(r"[^\n]*\n|[^\n]+")

Edit = Literal["same", "del", "ins"]


class Piece(NamedTuple):
    """A part of two compared texts: in both, only in the first (`del`), or only in the second (`ins`)."""

    edit: Edit
    text: str


def compare_texts(a: str, b: str) -> list[Piece]:
    """Return the difference of two texts in words, else in lines, else as a whole if that would be too much work."""
    units = (_WORDS, _LINES) if len(a) + len(b) <= WORDS_CHARS_MAX else (_LINES,)
    for unit in units:
        edits = _edits(unit.findall(a), unit.findall(b))
        if edits is not None:
            return [Piece(edit, "".join(text for _, text in run)) for edit, run in groupby(edits, lambda one: one[0])]
    return [Piece("del", a), Piece("ins", b)]


def pairs(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int | None, int | None]]:
    """Return the positions of two lists of different keys, in the order of both; None where only one has the key.

    As many keys as possible are in both, so that those which changed their place are not.
    """
    places = {key: index for index, key in enumerate(b)}
    shared = [(i, places[key]) for i, key in enumerate(a) if key in places]
    found: list[tuple[int | None, int | None]] = []
    i, j = 0, 0
    for x, y in (*_in_order(shared), (len(a), len(b))):
        found += [(index, None) for index in range(i, x)]
        found += [(None, index) for index in range(j, y)]
        found += [(x, y)] if x < len(a) else []
        i, j = x + 1, y + 1
    return found


def _in_order(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest part of pairs of positions, ascending in the first, that also ascends in the second."""
    ends: list[int] = []
    best: list[int] = []
    before: list[int] = []
    for index, (_, place) in enumerate(pairs):
        length = bisect_left(ends, place)
        before.append(best[length - 1] if length else -1)
        ends[length : length + 1] = [place]
        best[length : length + 1] = [index]
    chain, index = [], best[-1] if best else -1
    while index >= 0:
        chain.append(pairs[index])
        index = before[index]
    return chain[::-1]


def _edits(a: Sequence[str], b: Sequence[str]) -> list[tuple[Edit, str]] | None:
    """Return the edits from `a` to `b`; None if they are more than EDITS_MAX or take more than STEPS_MAX steps."""
    least = min(len(a), len(b))
    start = next((i for i in range(least) if a[i] != b[i]), least)
    end = next((i for i in range(least - start) if a[-1 - i] != b[-1 - i]), least - start)
    middle = _shortest(a[start : len(a) - end], b[start : len(b) - end])
    if middle is None:
        return None
    same: list[tuple[Edit, str]] = [("same", text) for text in a[:start]]
    return [*same, *middle, *(("same", text) for text in a[len(a) - end :])]


def _shortest(a: Sequence[str], b: Sequence[str]) -> list[tuple[Edit, str]] | None:
    """Return the fewest edits (Myers 1986), within the bounds; without one of the texts there is no bound."""
    if not a or not b:
        return [*(("del", text) for text in a), *(("ins", text) for text in b)]
    furthest, trail, steps = {1: 0}, [], 0
    for edits in range(EDITS_MAX + 1):
        trail.append(furthest.copy())
        for k in range(-edits, edits + 1, 2):
            x = _reached(furthest, k, len(a), len(b))
            if x is None:
                continue
            start = x
            while x < len(a) and x - k < len(b) and a[x] == b[x - k]:
                x += 1
            steps += 1 + x - start
            furthest[k] = x
            if x == len(a) and x - k == len(b):
                return _walk_back(trail, a, b)
            if steps > STEPS_MAX:
                return None
    return None


def _reached(furthest: Mapping[int, int], k: int, width: int, height: int) -> int | None:
    """Return the position in the first text that one more edit reaches on the diagonal `k`; None: outside the texts."""
    found = (furthest.get(k + 1, -1), furthest.get(k - 1, -2) + 1)
    return max((x for x in found if 0 <= x <= width and 0 <= x - k <= height), default=None)


def _walk_back(trail: Sequence[Mapping[int, int]], a: Sequence[str], b: Sequence[str]) -> list[tuple[Edit, str]]:
    done: list[tuple[Edit, str]] = []
    x, y = len(a), len(b)
    for furthest in reversed(trail):
        k = x - y
        start = _reached(furthest, k, len(a), len(b)) or 0
        while x > start:
            x, y = x - 1, y - 1
            done.append(("same", a[x]))
        if x == y == 0:
            break
        if furthest.get(k + 1, -1) == start:
            y -= 1
            done.append(("ins", b[y]))
        else:
            x -= 1
            done.append(("del", a[x]))
    return done[::-1]


WORDS_MAX: Final = 12
"""Number of changed blocks whose words are compared."""
_AROUND: Final = 200
Block = Mapping[str, Any]
"""A block of a request, or a range of events that it does not show whole."""


@dataclass(frozen=True, slots=True)
class BlockChange:
    """A block of the first request, of the second, or one of each in the same place, with the reason for a change."""

    before: Block | None
    after: Block | None
    why: Mapping[str, Any] | None = None
    pieces: Sequence[Piece] = ()

    @property
    def kind(self) -> str:
        """The change: `same`, `changed`, `removed` or `added`."""
        if self.before is None or self.after is None:
            return "added" if self.before is None else "removed"
        return "same" if _shown(self.before) == _shown(self.after) else "changed"

    @property
    def tokens(self) -> int:
        """The tokens that the second request has more than the first; negative if it has fewer."""
        return (self.after["tokens"] if self.after else 0) - (self.before["tokens"] if self.before else 0)


def compare(a: Sequence[Block], b: Sequence[Block], evictions: Sequence[Mapping[str, Any]]) -> list[BlockChange]:
    """Return all blocks of two requests, those of one event in pairs; `evictions` are those of the second."""
    found, left = [], WORDS_MAX
    for i, j in pairs(list(_keys(a)), list(_keys(b))):
        before, after = None if i is None else a[i], None if j is None else b[j]
        change = BlockChange(before, after)
        if before is None or change.kind == "same":
            found.append(change)
        elif after is None:
            found.append(BlockChange(before, after, _eviction(evictions, before["seq"])))
        elif left and after["mark"] not in ("stub", "erased") and before["mark"] not in ("stub", "erased"):
            left -= 1
            found.append(BlockChange(before, after, after, shorten(compare_texts(before["text"], after["text"]))))
        else:
            whole = [Piece("del", before["text"]), Piece("ins", after["text"])]
            found.append(BlockChange(before, after, after, shorten(whole)))
    return found


def first_difference(a: Sequence[Block], b: Sequence[Block]) -> int:
    """Return the position of the first block that differs, or that only one request has."""
    same = (_shown(x) == _shown(y) for x, y in zip(a, b, strict=False))
    return next((index for index, equal in enumerate(same) if not equal), min(len(a), len(b)))


def shorten(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces of a difference with the beginnings and ends of those that are long."""
    most = 2 * _AROUND
    return [
        Piece(one.edit, one.text)
        if len(one.text) <= most + 100
        else Piece(one.edit, f"{one.text[:_AROUND]} […{len(one.text) - most:,} characters…] {one.text[-_AROUND:]}")
        for one in pieces
    ]


@dataclass(frozen=True, slots=True)
class EvictionGroup:
    """The ranges of events that one rule left out or shortened for one reason, in one form."""

    reducer: str
    reason: str
    disposition: str
    ranges: Sequence[tuple[int, int]]
    tokens: int


def left_out(evictions: Iterable[Mapping[str, Any]]) -> list[EvictionGroup]:
    """Return the evictions of a call by rule, reason and form, the largest first; all summaries are one reason."""
    grouped: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in evictions:
        reason = row["reason"].rpartition(" ")[0] or row["reason"] if row["reducer"] == "fold" else row["reason"]
        grouped.setdefault((row["reducer"], reason, row["disposition"]), []).append(row)
    found = [
        EvictionGroup(
            *key, [(row["from_seq"], row["to_seq"]) for row in rows], sum(row["tokens_saved"] for row in rows)
        )
        for key, rows in grouped.items()
    ]
    return sorted(found, key=lambda one: -one.tokens)


def expected_read(blocks: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the tokens up to the last cache breakpoint that an earlier call has written; None if none is known."""
    known = [block["index"] for block in blocks if block["breakpoint"] in ("previous", "kept")]
    return sum(block["tokens"] for block in blocks[: known[-1] + 1]) if known else None


def _shown(block: Block) -> tuple[object, ...]:
    return tuple(block[name] for name in ("kind", "mark", "chars", "text"))


def _keys(blocks: Sequence[Block]) -> Iterator[Hashable]:
    """Yield a key for each block: its event, or the purpose of a text of the server."""
    seen: Counter[tuple[object, ...]] = Counter()
    for block in blocks:
        by_purpose = block["mark"] in ("summary", "note", "notice", "layer", "injected")
        key = (block["mark"], block["name"]) if by_purpose else (block["kind"], block["seq"])
        key = (block["kind"], None) if block["kind"] in ("tools", "system") else key
        seen[key] += 1
        yield (*key, seen[key])


def _eviction(evictions: Sequence[Mapping[str, Any]], seq: int) -> Mapping[str, Any] | None:
    """Return the eviction by which a request has no block of an event."""
    gone = (row for row in evictions if row["disposition"] != "stubbed" and row["from_seq"] <= seq <= row["to_seq"])
    return next(gone, None)


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """A window in tokens: its parts by name in the order of the bar, and the marks in it, counted from its start.

    `left` is the room before content must be left out, at `bound`, the lower of the threshold and the target.
    """

    limit: int
    parts: Mapping[str, int]
    threshold: int
    target: int
    bound: int
    left: int


def window_figures(
    tokens: Mapping[str, Any], blocks: Sequence[Mapping[str, Any]], policy: Policy, since: int
) -> WindowFigures:
    """Return the figures of a call's window with the tokens that were appended since.

    Injected content has a reserve of its own, after the target.
    """
    source, outside, target = tokens["by_source"], tokens["outside"], tokens["target"]
    injected = sum(block["tokens"] for block in blocks if block["mark"] == "injected")
    used = tokens["estimate"] - injected + since
    reduced_above = threshold(policy.trigger, tokens["limit"], target + outside) - outside
    parts = {
        "outside": outside,
        **{name: source.get(name, 0) for name in ("tools", "system", "summaries", "history", "current_turn")},
        "layers": source.get("ephemeral", 0) - injected,
        "appended": since,
        "remains": max(0, target - used),
        "injections": injected,
        "margin": max(0, tokens["limit"] - tokens["reserve"] - outside - max(target, used) - injected),
        "reserve": tokens["reserve"],
    }
    bound = min(reduced_above, target)
    return WindowFigures(tokens["limit"], parts, outside + reduced_above, outside + target, bound, bound - used)


ANSWER_TOKENS: Final = 1024
"""Limit of the answer, which Anthropic's API requires."""
_END: Final = "END_OF_REQUEST"


@dataclass(frozen=True, slots=True)
class _Provider:
    """The address and the headers of a provider's API. Keys are named by variables of the shell, never written."""

    address: str
    model: str
    headers: tuple[str, ...]
    fields: Mapping[str, Any] = field(default_factory=dict)


_PROVIDERS: Final[Mapping[str, _Provider]] = {
    "openai": _Provider(
        "https://api.openai.com/v1/chat/completions", "gpt-5-mini", ("Authorization: Bearer $OPENAI_API_KEY",)
    ),
    "openai-responses": _Provider(
        "https://api.openai.com/v1/responses", "gpt-5-mini", ("Authorization: Bearer $OPENAI_API_KEY",)
    ),
    "anthropic": _Provider(
        "https://api.anthropic.com/v1/messages",
        "claude-haiku-5-5",
        ("x-api-key: $ANTHROPIC_API_KEY", "anthropic-version: 2023-06-01"),
        {"max_tokens": ANSWER_TOKENS},
    ),
    "gemini": _Provider(
        "https://generativelanguage.googleapis.com/v1beta/models/{model}:generateContent",
        "gemini-2.5-flash",
        ("x-goog-api-key: $GEMINI_API_KEY",),
    ),
}


def curl_command(form: str, model: str | None, request: Mapping[str, Any]) -> str | None:
    """Return a command that sends a request to the provider of its format; None if the format has no provider.

    The body is one line of ASCII in a quoted here-document: no content can end it, and no shell interprets it. It is
    no argument, because those are limited in size. Without a model, one of the provider's is named.
    """
    provider = _PROVIDERS.get(form)
    if provider is None:
        return None
    named = model or provider.model
    body = {**({} if form == "gemini" else {"model": named}), **provider.fields, **request}
    line = json.dumps(json.loads(canonical_json(body))).replace("!", "\\u0021")  # shells expand ! in a terminal
    address = shlex.quote(provider.address.format(model=quote(named, safe="")))
    headers = "".join(f' \\\n  -H "{header}"' for header in ("content-type: application/json", *provider.headers))
    return f"curl {address}{headers} \\\n  --data-binary @- <<'{_END}'\n{line}\n{_END}\n"
