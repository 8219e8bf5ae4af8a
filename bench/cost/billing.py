"""Billing of requests as the provider's cache sees them."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from app.core.tokens.models import ANTHROPIC, ANTHROPIC_HOUR, OPENAI, OPENAI_PAID, CacheProfile
from bench.cost.sessions import Edit, Session, text_of
from bench.edits import parsed, strings, unnumbered
from palimpsest_tools.bench.billing import OUTPUT_PRICE, charged
from palimpsest_tools.bench.rivals import Sent
from palimpsest_tools.replay.bill import Bill

PROFILES: Final = {
    "Anthropic, 5 minutes": ANTHROPIC,
    "Anthropic, 1 hour": ANTHROPIC_HOUR,
    "OpenAI": OPENAI,
    "OpenAI, paid writes": OPENAI_PAID,
}

CALL_TOKENS: Final = 100
"""Tokens of a call that reads a file, which the model writes and then gets back as input."""
REREAD_TOKENS_MAX: Final = 4_000


@dataclass(slots=True)
class Tally:
    """The outcome of one or more sessions under one policy."""

    bill: Bill = field(default_factory=Bill)
    peak: int = 0
    epochs: int = 0
    used: int = 0
    seen: int = 0
    used_in_results: int = 0
    seen_in_results: int = 0
    edits: int = 0
    edits_seen: int = 0
    rereads: float = 0.0
    """Cost of reading again texts that edits quote and their context did not show, in input tokens at full price."""
    recalls: float = 0.0
    """Cost of recalling results whose values calls used and their context did not show, without `rereads`."""
    sizes: tuple[tuple[int, bool], ...] = ()
    """Tokens of each call of the last session, and whether it opened an epoch."""

    @property
    def grounding(self) -> float:
        """Share of the values seen in tool results only that were still visible when they were used."""
        return self.seen_in_results / self.used_in_results if self.used_in_results else 1.0

    @property
    def sight(self) -> float:
        """Share of the texts quoted by edits and seen before that were still visible word for word."""
        return self.edits_seen / self.edits if self.edits else 1.0

    @property
    def total(self) -> float:
        """The bill, rereads and recalls included."""
        return self.bill.billed + self.rereads + self.recalls

    @property
    def grounding_of_all(self) -> float:
        """Share of all values used that were still visible when they were used."""
        return self.seen / self.used if self.used else 1.0


def account(tally: Tally, session: Session, sent: Iterable[Sent], rules: CacheProfile) -> None:
    """Bill the requests of one session, and count the used values that were visible."""
    texts = {event.seq: text_of(event) for event in session.events} if any(c.edits for c in session.calls) else {}
    sizes: list[tuple[int, bool]] = []
    for call, (request, bill, size) in zip(session.calls, charged(sent, rules), strict=True):
        tally.bill += bill
        tally.peak = max(tally.peak, size)
        tally.epochs += request.cause is not None
        sizes.append((size, request.cause is not None))
        visible = {one.seq: one.text for one in request.shown}
        fixed = {e.seq for e in session.events[: call.events] if not e.rendered}
        unseen: set[int] = set()
        for value in call.values:
            seen = any(
                seq in fixed or (seq in visible and (visible[seq] is None or value.text in (visible[seq] or "")))
                for seq in value.holders
            )
            tally.used += 1
            tally.seen += seen
            tally.used_in_results += value.only_results
            tally.seen_in_results += seen and value.only_results
            if value.only_results and not seen:
                unseen.add(value.holders[-1])
        missing = _unseen_edits(tally, call.edits, visible, texts)
        reread = _reread_price(session, missing, rules, size)
        tally.rereads += reread
        tally.recalls += _reread_price(session, missing | unseen, rules, size) - reread
    tally.sizes = tuple(sizes)


def _unseen_edits(
    tally: Tally, edits: Iterable[Edit], visible: Mapping[int, str | None], texts: Mapping[int, str]
) -> set[int]:
    """Count the edits whose text is visible; return the newest holders of the others' texts."""
    missing: set[int] = set()
    for edit in edits:
        shown = (seq for seq in edit.holders if seq in visible)
        seen = any(
            edit.text in (texts[seq] if visible[seq] is None else unnumbered(_words(visible[seq]))) for seq in shown
        )
        tally.edits += 1
        tally.edits_seen += seen
        if not seen:
            missing.add(edit.holders[-1])
    return missing


def _reread_price(session: Session, seqs: Collection[int], rules: CacheProfile, size: int) -> float:
    """Return the price of reading or recalling these events in one further call.

    It reads the context of `size` tokens from the cache, and writes the call and the events, each up to
    REREAD_TOKENS_MAX.
    """
    if not seqs:
        return 0.0
    written = sum(min(session.events[seq - 1].tokens, REREAD_TOKENS_MAX) for seq in seqs)
    return rules.read_price * size + rules.write_price * (written + CALL_TOKENS) + OUTPUT_PRICE * CALL_TOKENS


def _words(shown: str | None) -> str:
    """Return the text that is shown of a shortened event; arguments that follow as JSON are replaced by their texts."""
    start = (shown or "").find("{")
    inner = parsed((shown or "")[start:]) if start >= 0 else {}
    return "\n".join(((shown or "")[:start], *strings(dict(inner)))) if inner else shown or ""
