"""Tables of evidence before the model."""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from bench.believed.evidence import ARMS, CONTEXT, NEWEST, Found
from bench.believed.shares import cell

T = TypeVar("T")
_ALL: Final = "all"


def by_window(found: Sequence[Found], groups: Sequence[tuple[str, Callable[[Found], bool]]]) -> str:
    """Return Markdown: for each group of conversations, window and way, the shares of questions with all sources."""
    lines = [
        "| questions | window | before the model | word for word | by the answer's sentences | of a question's sources"
        " | tokens, mean |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, holds in groups:
        for window in _ordered(one.window for one in found):
            for arm in ARMS:
                rows = [one for one in found if one.window == window and one.arm == arm and holds(one)]
                if rows:
                    mean = sum(sum(one.whole) / len(one.whole) for one in rows) / len(rows)
                    tokens = sum(one.tokens for one in rows) / len(rows)
                    lines.append(
                        f"| {name}, {len(rows)} | {window:,} | {arm} | {cell([all(one.whole) for one in rows])} |"
                        f" {cell([all(one.by_sentence) for one in rows])} | {mean:.1%} | {tokens:,.0f} |"
                    )
    return "\n".join(lines)


def by_kind(found: Sequence[Found], window: int) -> str:
    """Return Markdown: by kind of question, in one window, the shares in each way; word for word / by sentences."""
    rows = [one for one in found if one.window == window]
    lines = [
        f"Window {window:,}. In each cell: all sources word for word, then by the answer's sentences.\n",
        f"| kind | questions | sources, mean | {' | '.join(ARMS)} |",
        f"|---|---:|---:|{'---|' * len(ARMS)}",
    ]
    for kind in (*sorted({one.kind for one in rows}), _ALL):
        of_kind = [one for one in rows if kind in (one.kind, _ALL)]
        cells: list[str] = []
        for arm in ARMS:
            here = [one for one in of_kind if one.arm == arm]
            cells.append(f"{cell([all(o.whole) for o in here])}; {cell([all(o.by_sentence) for o in here])}")
        count = [one for one in of_kind if one.arm == NEWEST]
        sources = sum(len(one.whole) for one in count) / max(1, len(count))
        lines.append(f"| {kind} | {len(count)} | {sources:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def by_conversation(found: Sequence[Found], window: int) -> str:
    """Return Markdown: in one window, each conversation's shares by the answer's sentences."""
    rows = [one for one in found if one.window == window]
    lines = [
        f"Window {window:,}, by the answer's sentences.\n",
        f"| conversation | questions | {' | '.join(ARMS)} |",
        f"|---|---:|{'---:|' * len(ARMS)}",
    ]
    for name in _ordered(one.conversation for one in rows):
        of_one = [[all(o.by_sentence) for o in rows if o.conversation == name and o.arm == arm] for arm in ARMS]
        lines.append(
            f"| {name} | {len(of_one[0])} | {' | '.join(f'{sum(row) / max(1, len(row)):.0%}' for row in of_one)} |"
        )
    return "\n".join(lines)


def lost_to(found: Sequence[Found]) -> str:
    """Return Markdown: the questions in which one way has all sources, by sentences, and another lacks some."""
    lines = ["| window | the context has, the newest lack | the newest have, the context lacks |", "|---|---:|---:|"]
    for window in _ordered(one.window for one in found):
        ours, theirs = (
            {(o.conversation, o.question): all(o.by_sentence) for o in found if o.window == window and o.arm == arm}
            for arm in (CONTEXT, NEWEST)
        )
        gained = sum(ours[key] and not theirs[key] for key in ours)
        lost = sum(theirs[key] and not ours[key] for key in ours)
        lines.append(f"| {window:,} | {gained} | {lost} |")
    return "\n".join(lines)


def _ordered(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
