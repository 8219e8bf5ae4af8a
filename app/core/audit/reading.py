"""Facts for readers of a call: its window, its evictions by reason, and the difference of its blocks from another's.

Blocks and evictions are as the API describes them, the form in which clients have them.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.core.audit.differences import Piece, compare_texts, pairs
from app.core.policy.policy import Policy
from app.core.tokens.budget import threshold

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
