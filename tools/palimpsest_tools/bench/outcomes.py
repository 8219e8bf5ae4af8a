"""Outcome of a rule in a session: its bill, and the values that calls could see when they used them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from app.core.tokens.models import ANTHROPIC_HOUR, Bill, CacheProfile
from palimpsest_tools.bench import clients
from palimpsest_tools.bench.billing import OUTPUT_PRICE, charged
from palimpsest_tools.bench.rivals import Player, Sent, append_only, clear_above, mask_every_turn
from palimpsest_tools.bench.sessions import CallMade, LoggedSession
from palimpsest_tools.recordings.recording import ModelCall, RecordedUsage

OURS: Final = "Palimpsest"
APPEND_ONLY: Final = "append-only, no limit"


@dataclass(slots=True)
class KeptValues:
    """Values that calls used: the number of uses, and of those that were visible; the same for those in results only.

    `unique` has the share of the uses of each value that were visible. A value in a summary counts by its likelihood.
    """

    uses: int = 0
    visible: float = 0.0
    in_results: int = 0
    in_results_visible: float = 0.0
    unique: dict[str, list[float]] = field(default_factory=dict)

    def add(self, text: str, seen: float, *, only_results: bool) -> None:
        """Add a use of a value."""
        self.uses += 1
        self.visible += seen
        if only_results:
            self.in_results += 1
            self.in_results_visible += seen
        self.unique.setdefault(text, []).append(seen)

    @property
    def unique_visible(self) -> float:
        """The number of different values that were visible whenever they were used."""
        return sum(min(seen) for seen in self.unique.values())


@dataclass(slots=True)
class RuleOutcome:
    """The outcome of a rule in one session. `summaries` are the requests for a summary, billed with the others."""

    bill: Bill = field(default_factory=Bill)
    output: float = 0.0
    peak: int = 0
    over_window: int = 0
    summaries: int = 0
    kept: KeptValues = field(default_factory=KeptValues)

    @property
    def billed(self) -> float:
        """The bill for all input, and for the output of summaries, in input tokens at full price."""
        return self.bill.billed + self.output


def rules_for(session: LoggedSession, window: int) -> Mapping[str, Player]:
    """Return the rules to compare with in this session, by their names."""
    found: dict[str, Player] = {
        APPEND_ONLY: append_only,
        "clear tool results above 100K, keep 3 (Anthropic's default)": clear_above(100_000, 3, 0),
        "keep the newest 10 tool results": mask_every_turn(10),
    }
    for agent in clients.COMPACTIONS:
        if clients.applies(agent, session, window):
            found[rule_of(agent)] = clients.compacting(agent, window)
    return found | {f"{clients.AGENT_NAMES['opencode']}'s pruning": clients.prune}


def rule_of(agent: str) -> str:
    """Return the name of an agent's own rule."""
    return f"{clients.AGENT_NAMES[agent]}'s compaction"


def outcome(session: LoggedSession, sent: Iterable[Sent], rules: CacheProfile, window: int) -> RuleOutcome:
    """Bill the requests of one session, and count the used values that were visible in each."""
    found = RuleOutcome()
    calls = iter(session.calls)
    for request, bill, size in charged(sent, rules):
        found.bill += bill
        if request.written:
            found.summaries += 1
            found.output += OUTPUT_PRICE * request.written
            continue
        found.peak = max(found.peak, size)
        found.over_window += size > window
        _count(found.kept, session, next(calls), request)
    return found


def _count(kept: KeptValues, session: LoggedSession, call: CallMade, request: Sent) -> None:
    visible = {one.seq: one.text for one in request.shown}
    summarized = any(seq < 0 for seq in visible)
    for value in call.values:
        seen = any(
            not session.events[seq - 1].rendered
            or (seq in visible and (visible[seq] is None or value.text in (visible[seq] or "")))
            for seq in value.holders
        )
        share = 1.0 if seen else clients.SUMMARY_KEEPS if summarized else 0.0
        kept.add(value.text, share, only_results=value.only_results)


@dataclass(slots=True)
class Recorded:
    """The input that the provider billed in the real run, by the usage in the log, and the calls that have one."""

    calls: int = 0
    tokens: int = 0
    billed: float = 0.0
    writes: int = 0
    writes_hour: int = 0

    def add(self, used: RecordedUsage, rules: CacheProfile) -> None:
        """Add a call's usage."""
        read, write, hour = used.read or 0, used.write or 0, used.write_hour or 0
        fresh = max(0, used.input - read - write)
        self.calls += 1
        self.tokens += used.input
        self.writes += write
        self.writes_hour += hour
        price = rules.write_price * (write - hour) + ANTHROPIC_HOUR.write_price * hour
        self.billed += rules.read_price * read + price + fresh


def recorded(calls: Iterable[ModelCall], rules: CacheProfile) -> Recorded:
    """Return the recorded bill of a session's calls."""
    found = Recorded()
    for call in calls:
        if call.usage is not None:
            found.add(call.usage, rules)
    return found
