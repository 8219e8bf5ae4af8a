"""The window of a recorded call in figures, and the content that a later context newly leaves out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.core.policy.policy import Policy
from app.core.tokens.budget import threshold


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


def new_evictions(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the evictions that only the later context has, of a longer run its new end; the largest first."""
    names = ("from_seq", "disposition", "reducer", "reason")
    known = {tuple(row[name] for name in names): row for row in before}
    new = []
    for row in after:
        old = known.get(tuple(row[name] for name in names))
        if old is None:
            new.append(row)
        elif row["to_seq"] > old["to_seq"]:
            saved = row["tokens_saved"] - old["tokens_saved"]
            new.append({**row, "from_seq": old["to_seq"] + 1, "tokens_saved": saved})
    # Parts of a summary's range that are split around shown events save nothing, but for the last one.
    return sorted((row for row in new if row["tokens_saved"] > 0), key=lambda row: -row["tokens_saved"])
