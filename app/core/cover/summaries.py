"""The cover: summaries side by side from seq 1 on, how finely they are shown, and which become one.

Summaries form a tree: a merged one stands for all that those it was made of stand for, and these are kept. So one span
can be shown by one summary, or by several finer ones side by side: a tiling.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid5

from app.core.log.events import canonical_json
from app.core.policy.shows import EVERYTHING, ViewFilter
from app.core.policy.summarize import Summarize

COVER_SHARE: Final = 0.4
"""Of the target: more than this the summaries that are shown do not take while the rest has no room."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A stored summary, as the plan and the render need it; its text never changes.

    It stands for the events from_seq..to_seq, which took `source_tokens`. `starts_at` and `ends_at` are the times of
    the first and last of them, in ISO 8601; `split_turn` is the turn that its end falls into; `cover_id` says which
    summaries stand side by side with it. `live`: not superseded by a merged or rewritten one.
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
    live: bool = True


@dataclass(frozen=True, slots=True)
class Clipped:
    """What is shown of a cover: `first`, then a line for the `omitted` ones, then `last`."""

    first: tuple[Summary, ...]
    omitted: tuple[Summary, ...] = ()
    last: tuple[Summary, ...] = ()

    @property
    def shown(self) -> tuple[Summary, ...]:
        """Those whose text is shown."""
        return self.first + self.last


def contiguous(summaries: Iterable[Summary]) -> tuple[Summary, ...]:
    """The run of summaries that begins at seq 1 and has no hole; what stands behind a hole covers nothing yet."""
    run: list[Summary] = []
    for summary in sorted(summaries, key=lambda s: s.from_seq):
        if summary.from_seq != (run[-1].to_seq + 1 if run else 1):
            break
        run.append(summary)
    return tuple(run)


def ends(tree: Iterable[Summary]) -> tuple[int, ...]:
    """The seqs at which a tiling from seq 1 on can end, in order."""
    reached = {0}
    for summary in sorted(tree, key=lambda s: s.from_seq):
        if summary.from_seq - 1 in reached:
            reached.add(summary.to_seq)
    return tuple(sorted(reached - {0}))


def tiling(tree: Iterable[Summary], from_seq: int, to_seq: int) -> tuple[Summary, ...]:
    """The fewest summaries side by side from from_seq to to_seq; empty if none stand so.

    Of two for one span the live one, else the later one (`tree` is in the order in which they were made).
    """
    by_span: dict[tuple[int, int], Summary] = {}
    for one in sorted(tree, key=lambda s: s.live):
        if from_seq <= one.from_seq and one.to_seq <= to_seq:
            by_span[one.from_seq, one.to_seq] = one
    best: dict[int, tuple[Summary, ...]] = {to_seq + 1: ()}
    for span in sorted(by_span, reverse=True):
        behind = best.get(span[1] + 1)
        if behind is not None and (span[0] not in best or len(behind) + 1 < len(best[span[0]])):
            best[span[0]] = (by_span[span], *behind)
    return best.get(from_seq, ())


def refined(
    tree: Sequence[Summary], shown: Sequence[Summary], room: int, cost: Callable[[Summary], int]
) -> tuple[Summary, ...]:
    """The tiling `shown` with finer summaries in the place of merged ones, the newest first, while `room` tokens last.

    What is finer is what a summary was made of, where that stands for the whole span; it can be made finer again.
    """
    done: list[Summary] = []
    waiting = list(shown)
    while waiting:
        one = waiting.pop()
        inner = [s for s in tree if (s.from_seq, s.to_seq) != (one.from_seq, one.to_seq)]
        finer = tiling(inner, one.from_seq, one.to_seq)
        more = sum(map(cost, finer)) - cost(one)
        if finer and more <= room:
            room -= more
            waiting += finer
        else:
            done.append(one)
    return tuple(reversed(done))


def clip(cover: Sequence[Summary], rules: Summarize) -> Clipped:
    """What is shown of a cover, all of which counts as folded."""
    if rules.view == "latest" and cover:
        return Clipped((), tuple(cover[:-1]), tuple(cover[-1:]))
    if rules.view == "clip" and len(cover) > rules.clip_first + rules.clip_last:
        end = len(cover) - rules.clip_last
        return Clipped(tuple(cover[: rules.clip_first]), tuple(cover[rules.clip_first : end]), tuple(cover[end:]))
    return Clipped(tuple(cover))


def due_merge(cover: Sequence[Summary], rules: Summarize, tokens_max: float = math.inf) -> tuple[Summary, ...]:
    """The neighbours that are to become one of a depth above theirs; empty while there are few enough.

    A cover of more than `tokens_max` is too large however few they are: then all but the last ones become one.

    `level`: of the lowest depth that has too many in a row, all but the newest, so that each event is summarized again
    once for each depth, and the number of summaries grows with the logarithm of the log. `oldest`: all but the last
    ones. `middle`: those that a clipped view leaves out.
    """
    if rules.view == "latest":
        return tuple(cover) if len(cover) > 1 else ()
    too_large = sum(one.tokens for one in clip(cover, rules).shown) > tokens_max
    if too_large and len(cover) > rules.clip_last + 1:
        return tuple(cover[: len(cover) - rules.clip_last])
    if rules.scope == "level":
        return _level(cover, rules)
    if len(cover) <= rules.clip_first + rules.clip_last + rules.buffer:
        return ()
    start = rules.clip_first if rules.scope == "middle" else 0
    merged = tuple(cover[start : len(cover) - rules.clip_last])
    return merged if len(merged) > 1 else ()


def _level(cover: Sequence[Summary], rules: Summarize) -> tuple[Summary, ...]:
    runs: list[list[Summary]] = []
    for summary in cover:
        if runs and runs[-1][-1].depth == summary.depth:
            runs[-1].append(summary)
        else:
            runs.append([summary])
    allowed = rules.clip_last + rules.buffer
    full = [run for run in runs if len(run) > max(allowed, rules.clip_last + 1)]
    lowest = min(full, key=lambda run: run[0].depth, default=None)
    return () if lowest is None else tuple(lowest[: len(lowest) - rules.clip_last])


def cover_id(session_id: UUID, shows: ViewFilter) -> UUID:
    """Which summaries stand side by side: those made of the same events of a session."""
    if shows == EVERYTHING:
        return session_id
    authors, types = (None if names is None else sorted(names) for names in (shows.authors, shows.types))
    # Without types as it was before there were any: covers are found by it.
    return uuid5(session_id, canonical_json(authors if types is None else {"authors": authors, "types": types}))
