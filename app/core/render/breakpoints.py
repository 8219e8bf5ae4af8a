"""Where Anthropic's cache markers stand: at most 4, each readable from the one before or from the last one written.

The provider writes its cache only at markers, and looks back from a marker over at most 20 content blocks for an entry
written before, a run of parallel tool uses counting as one.
"""

from collections.abc import Sequence
from typing import Final

from app.core.formats.anthropic import Unit, content_units
from app.core.render.layout import Breakpoint, Layout

MARKERS_MAX: Final = 4
LOOKBACK_BLOCKS: Final = 20


def choose(
    layout: Layout,
    last_written: Sequence[int] = (),
    *,
    markers_max: int = MARKERS_MAX,
    lookback: int = LOOKBACK_BLOCKS,
) -> tuple[Breakpoint, ...]:
    """The breakpoints of a request, in order of their place.

    `last_written` are the seqs of the breakpoints of the view's last call in this epoch. Kinds: `system` (end of tools
    and system prompt), `previous` (the last call's tail: what is read now), `chain` (steps of at most `lookback` blocks
    from there), `tail` (what the next call will read). Where the markers do not suffice for every step, `previous`
    stays and the newest steps go: then this call reads all that was written, and writes the rest once.
    """
    chosen: list[Breakpoint] = []
    prefix_seq = max(layout.tools_seq, layout.system.seq if layout.system else 0)
    if layout.system is not None or layout.tools:
        chosen.append(Breakpoint(prefix_seq, "system"))
    places = _places(content_units(layout))
    if not places:
        return tuple(chosen)
    tail_seq, tail_at = places[-1]
    room = markers_max - len(chosen) - 1
    previous = next(((seq, at) for seq, at in reversed(places) if seq in last_written), None)
    if previous is None:
        steps = _steps(places, 0, tail_at, lookback)
        chosen += [Breakpoint(seq, "chain") for seq in steps] if len(steps) <= room else []
    elif previous[0] != tail_seq:
        steps = _steps(places, previous[1], tail_at, lookback)
        if len(steps) < room or len(steps) > room:
            chosen.append(Breakpoint(previous[0], "previous"))
            steps = steps[: room - 1]
        chosen += [Breakpoint(seq, "chain") for seq in steps]
    return (*chosen, Breakpoint(tail_seq, "tail"))


def _places(units: Sequence[Unit]) -> list[tuple[int, int]]:
    """For each event a marker can stand behind: its seq, and where its last such block stands in blocks looked back."""
    last_block: dict[int, int] = {}
    at = 0
    run = False
    for unit in units:
        if unit.ephemeral:
            break
        at += not (run and unit.is_tool_use)
        run = unit.is_tool_use
        if unit.can_carry and unit.seq:
            last_block.pop(unit.seq, None)  # a pending stub bears its call's seq, and stands behind it
            last_block[unit.seq] = at
    return list(last_block.items())


def _steps(places: Sequence[tuple[int, int]], start: int, end: int, lookback: int) -> list[int]:
    """The seqs of the fewest places between start and end such that no step is longer than `lookback`."""
    steps: list[int] = []
    at = start
    while end - at > lookback:
        reachable = [(seq, place) for seq, place in places if at < place <= at + lookback]
        if not reachable:
            break
        seq, at = reachable[-1]
        steps.append(seq)
    return steps
