"""The cover of a log: the adjacent summaries from seq 1, the choice of those shown, and the next merge.

Summaries form a tree: a merged summary covers the spans of its sources, and the sources stay stored. So a span can be
shown as one summary or as several finer ones, which is called a tiling.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Final
from uuid import UUID, uuid5

from app.core.log.events import Json, canonical_json
from app.core.policy.groups import SHOW_ALL, Summarize, ViewFilter

COVER_SHARE: Final = 0.4
"""The share of the target that shown summaries may take while the rest of the context does not fit."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A stored summary, as planning and rendering need it; its text never changes.

    It covers the events from_seq..to_seq, which took `source_tokens`. `starts_at` and `ends_at` are the times of the
    first and last of these events, in ISO 8601. `split_turn` is the turn that the span's end cuts through, None if it
    ends with a turn. Summaries with the same `cover_id` form one cover. `first_turn` and `last_turn` are those of its
    events; 0 if unknown. `tokens` counts the text as a message. `depth` is 0 for a summary of events, else one more
    than that of the deepest it merged. `status` is as in `StoredSummary`.
    """

    id: str
    from_seq: int
    to_seq: int
    depth: int
    tokens: int
    text: str
    source_tokens: int = 0
    events: int = 0
    split_turn: int | None = None
    starts_at: str = ""
    ends_at: str = ""
    cover_id: str = ""
    status: str = "live"
    first_turn: int = 0
    last_turn: int = 0

    @property
    def live(self) -> bool:
        """Whether contexts may show this summary: it is not superseded, refused or invalid."""
        return self.status == "live"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSummary(Summary):
    """A summary with all that is stored of it. Lists have it without `text`, `digest` and `usage`.

    `status` is live, superseded, refused by the quality gate with `complaints`, or invalid since an event it covers was
    erased. `sources` are the ids of the summaries that it replaced. `created_at` is None until it is stored.
    """

    turns: tuple[int, ...] = ()
    digest: Mapping[str, Json] = field(default_factory=dict)
    summarizer: str = ""
    model: str | None = None
    prompt_version: str | None = None
    usage: Mapping[str, Json] = field(default_factory=dict)
    degraded: bool = False
    complaints: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    superseded_by: str | None = None
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Clipped:
    """The shown form of a cover: the summaries `first`, one line in place of `omitted`, then the summaries `last`."""

    first: tuple[Summary, ...]
    omitted: tuple[Summary, ...] = ()
    last: tuple[Summary, ...] = ()

    @property
    def shown(self) -> tuple[Summary, ...]:
        """The summaries whose text is shown."""
        return self.first + self.last


def contiguous(summaries: Iterable[Summary]) -> tuple[Summary, ...]:
    """Return the run of summaries from seq 1 up to the first hole."""
    run: list[Summary] = []
    for summary in sorted(summaries, key=lambda s: s.from_seq):
        if summary.from_seq != (run[-1].to_seq + 1 if run else 1):
            break
        run.append(summary)
    return tuple(run)


def fold_ends(tree: Iterable[Summary]) -> tuple[int, ...]:
    """Return the seqs at which a tiling from seq 1 can end, in order."""
    reached = {0}
    for summary in sorted(tree, key=lambda s: s.from_seq):
        if summary.from_seq - 1 in reached:
            reached.add(summary.to_seq)
    return tuple(sorted(reached - {0}))


def tiling(tree: Iterable[Summary], from_seq: int, to_seq: int) -> tuple[Summary, ...]:
    """Return the fewest adjacent summaries that cover from_seq..to_seq; empty if no combination does.

    If two summaries have one span, the live one is preferred, else the newer one (`tree` is ordered by creation).
    """
    by_span: dict[tuple[int, int], Summary] = {}
    for summary in sorted(tree, key=lambda s: s.live):
        if from_seq <= summary.from_seq and summary.to_seq <= to_seq:
            by_span[summary.from_seq, summary.to_seq] = summary
    best: dict[int, tuple[Summary, ...]] = {to_seq + 1: ()}
    for span in sorted(by_span, reverse=True):
        rest = best.get(span[1] + 1)
        if rest is not None and (span[0] not in best or len(rest) + 1 < len(best[span[0]])):
            best[span[0]] = (by_span[span], *rest)
    return best.get(from_seq, ())


def refine(
    tree: Sequence[Summary], shown: Sequence[Summary], room: int, cost: Callable[[Summary], int]
) -> tuple[Summary, ...]:
    """Return the tiling `shown` with merged summaries replaced by finer ones, newest first, within `room` more tokens.

    A summary is replaced only by summaries that cover its whole span; these may be replaced by finer ones in turn.
    """
    done: list[Summary] = []
    stack = list(shown)
    while stack:
        summary = stack.pop()
        inner = [s for s in tree if (s.from_seq, s.to_seq) != (summary.from_seq, summary.to_seq)]
        finer = tiling(inner, summary.from_seq, summary.to_seq)
        left = room + cost(summary) if finer else 0
        for one in finer:
            left -= cost(one)
            if left < 0:  # counting a summary is slow, and no further one would lower the total
                break
        if finer and left >= 0:
            room = left
            stack += finer
        else:
            done.append(summary)
    return tuple(reversed(done))


def clip(cover: Sequence[Summary], rules: Summarize) -> Clipped:
    """Return the part of a cover that `summarize.view` shows; the whole cover counts as folded."""
    if rules.view == "latest" and cover:
        return Clipped((), tuple(cover[:-1]), tuple(cover[-1:]))
    if rules.view == "clip" and len(cover) > rules.clip_first + rules.clip_last:
        end = len(cover) - rules.clip_last
        return Clipped(tuple(cover[: rules.clip_first]), tuple(cover[rules.clip_first : end]), tuple(cover[end:]))
    return Clipped(tuple(cover))


def due_merge(cover: Sequence[Summary], rules: Summarize, tokens_max: float = math.inf) -> tuple[Summary, ...]:
    """Return the adjacent summaries to merge next; empty if no merge is due.

    With `summarize.view` `latest`: all, as soon as there are two. Otherwise, if the shown summaries take more than
    `tokens_max`, all but the last `clip_last`, if these are at least two. Otherwise by the policy's scope. `level`: all
    but the last `clip_last` of the lowest depth that has too many in a row, so that each event is summarized again once
    per depth, and the number of summaries grows with the logarithm of the log. `oldest`: all but the last `clip_last`.
    `middle`: the summaries that a clipped view omits.
    """
    if rules.view == "latest":
        return tuple(cover) if len(cover) > 1 else ()
    too_large = sum(summary.tokens for summary in clip(cover, rules).shown) > tokens_max
    if too_large and len(cover) > rules.clip_last + 1:
        return tuple(cover[: len(cover) - rules.clip_last])
    if rules.scope == "level":
        return _due_by_level(cover, rules)
    if len(cover) <= rules.clip_first + rules.clip_last + rules.buffer:
        return ()
    start = rules.clip_first if rules.scope == "middle" else 0
    merged = tuple(cover[start : len(cover) - rules.clip_last])
    return merged if len(merged) > 1 else ()


def _due_by_level(cover: Sequence[Summary], rules: Summarize) -> tuple[Summary, ...]:
    runs = [list(run) for _, run in groupby(cover, key=lambda summary: summary.depth)]
    allowed = rules.clip_last + rules.buffer
    full = [run for run in runs if len(run) > max(allowed, rules.clip_last + 1)]
    lowest = min(full, key=lambda run: run[0].depth, default=None)
    return () if lowest is None else tuple(lowest[: len(lowest) - rules.clip_last])


def cover_id(session_id: UUID, shows: ViewFilter) -> UUID:
    """Return the id of the cover that views with the filter `shows` share in a session."""
    if shows == SHOW_ALL:
        return session_id
    authors, types = (None if names is None else sorted(names) for names in (shows.authors, shows.types))
    # A filter by authors alone is hashed as a bare list: the ids of stored covers depend on it.
    return uuid5(session_id, canonical_json(authors if types is None else {"authors": authors, "types": types}))
