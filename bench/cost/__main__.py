"""`make bench NAME=cost RECORDINGS=folder`: the bill of each policy on recorded sessions.

Context sizes are our estimates for a Claude model; append-only is billed as if the window had no end. Grounding is the
share of values seen in tool results only (and of all values) that were still visible verbatim when a call used them. "A
miss may cost" is the number of input tokens per value that was not visible at which the saving is used up. Edits: of
the texts that edits quote and that had been seen before, the share that was visible word for word. "With re-reads"
bills one more call and its result for each text that was not, "with recalls" also one for each value of a result that a
call used and did not see.
"""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from app.core.policy.policy import PRESETS
from app.core.tokens.models import CacheProfile
from bench.cost import optimum, rivals
from bench.cost import outside as keeping
from bench.cost.billing import PROFILES, Tally, account
from bench.cost.picture import svg
from bench.cost.sessions import Session, load
from palimpsest_tools.bench import rivals as others
from palimpsest_tools.bench.rivals import Player
from palimpsest_tools.recordings.recording import MalformedRecording

SAMPLES = Path(__file__).parents[2] / "tests" / "samples"
WINDOW = 200_000


def players(window: int) -> dict[str, Player]:
    """Return the policies by their names in the table, append-only first."""
    found: dict[str, Player] = {
        "append-only": others.append_only,
        "newest that fit": rivals.newest(window),
        "mask every turn, keep 10": others.mask_every_turn(10),
        "clear above 100K, keep 3": others.clear_above(100_000, 3, 0),
        "clear above 60K, keep 10, at least 20K": others.clear_above(60_000, 10, 20_000),
    }
    return found | {f"`{name}`": rivals.ours(policy, window) for name, policy in PRESETS.items()}


def best(session: Session, cache: CacheProfile) -> Player:
    """Return the offline optimum of one session."""
    chosen = optimum.evictions(session, cache)
    return rivals.evicting(lambda number: chosen[number])


def measure(
    sessions: list[Session], profile: CacheProfile, window: int, *, outside: bool = False
) -> dict[str, list[Tally]]:
    """Return each policy's outcome, session by session."""
    found: dict[str, list[Tally]] = {}
    for policy, play in (keeping.players(window) if outside else players(window)).items():
        found[policy] = [_one(session, play, profile) for session in sessions]
    found["offline optimum"] = [_one(session, best(session, profile), profile) for session in sessions]
    return found


def _one(session: Session, play: Player, profile: CacheProfile) -> Tally:
    tally = Tally()
    account(tally, session, play(session, profile), profile)
    return tally


def table(found: Mapping[str, list[Tally]]) -> str:
    """Return a Markdown table with a line for each policy."""
    base = sum(tally.bill.billed for tally in found["append-only"])
    least = sum(tally.bill.billed for tally in found["offline optimum"])
    lines = [
        "| policy | billed | worst session | with re-reads | with recalls | worst session | edits | against the optimum"
        " | from cache | peak | grounding | of all | epochs | a miss may cost |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, tallies in found.items():
        billed = sum(t.bill.billed for t in tallies)
        tokens = sum(t.bill.tokens for t in tallies)
        used, seen = sum(t.used_in_results for t in tallies), sum(t.seen_in_results for t in tallies)
        every, seen_of_all = sum(t.used for t in tallies), sum(t.seen for t in tallies)
        pairs = list(zip(tallies, found["append-only"], strict=True))
        worst = max(t.bill.billed / b.bill.billed - 1 for t, b in pairs)
        reread = billed + sum(t.rereads for t in tallies)
        total = sum(t.total for t in tallies)
        worst_total = max(t.total / b.bill.billed - 1 for t, b in pairs)
        edits, edits_seen = sum(t.edits for t in tallies), sum(t.edits_seen for t in tallies)
        misses = used - seen
        lines.append(
            f"| {name} | {billed / base - 1:+.1%} | {worst:+.1%} | {reread / base - 1:+.1%} | {total / base - 1:+.1%}"
            f" | {worst_total:+.1%} | {f'{edits_seen / edits:.1%}' if edits else ''} | {billed / least:.2f}"
            f" | {sum(t.bill.read_tokens for t in tallies) / tokens:.1%} | {max(t.peak for t in tallies) / 1000:.0f}K"
            f" | {seen / used if used else 1:.1%} | {seen_of_all / every if every else 1:.1%}"
            f" | {sum(t.epochs for t in tallies)} | {f'{(base - billed) / misses:,.0f}' if misses else ''} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark and print its tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=SAMPLES, help="a folder of neutral JSONL recordings")
    parser.add_argument("--sets", nargs="*", help="names of files without .jsonl, by default all of the folder")
    parser.add_argument("--rules", nargs="*", default=list(PROFILES), choices=list(PROFILES))
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--outside", action="store_true", help="tools and system prompts kept outside of the log")
    parser.add_argument("--short", type=int, help="cut the sessions into runs of this many tool calls")
    parser.add_argument("--bare", action="store_true", help="without the prefix tokens that the recordings lack")
    parser.add_argument("--picture", type=Path, help="a file for an SVG of the longest session of the first set")
    given = parser.parse_args()
    files = sorted(given.data.glob("*.jsonl"))
    for file in [f for f in files if f.stem in given.sets] if given.sets else files:
        try:
            sessions = list(load(file, outside=given.outside, short=given.short))
        except MalformedRecording as error:
            print(f"{file.name} is no neutral recording: {error}")
            continue
        if given.bare:
            sessions = [replace(session, prefix_tokens=0) for session in sessions]
        for name in given.rules:
            found = measure(sessions, PROFILES[name], given.window, outside=given.outside)
            print(f"\n### {file.stem}: {len(sessions)} sessions, {name}\n\n{table(found)}", flush=True)
            if given.picture:
                longest = max(range(len(sessions)), key=lambda n: len(sessions[n].calls))
                lines = {n: found[n][longest].sizes for n in ("append-only", "mask every turn, keep 10", "`default`")}
                title = f"Contexts of a recorded coding session of {len(sessions[longest].calls)} calls"
                given.picture.write_text(svg(title, lines), encoding="utf-8")
                given.picture = None


if __name__ == "__main__":
    main()
