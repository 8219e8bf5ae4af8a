"""The rules by which coding agents make their own conversations smaller, as far as their sources show them.

* Claude Code, `cli.js` of @anthropic-ai/claude-code 2.1.100 (npm; later versions hold no readable source): compacts at
  the window less the maximal output (at most 20,000 tokens) less 13,000: 167,000 of 200,000. Compactions of the
  recordings in `docs/benchmarks.md` began at 155,000 to 169,000. A summary replaces all messages; up to five files that
  were read last are added, each of at most 5,000 tokens.
* Codex, `codex-rs/protocol/src/openai_models.rs` (`auto_compact_token_limit`) and `codex-rs/core/src/compact.rs` of
  openai/codex, 2026: compacts at 90% of the window. The newest 20,000 tokens of user messages and a summary stay.
* Gemini CLI, `packages/core/src/context/chatCompressionService.ts` of google-gemini/gemini-cli 0.56.0: compresses at
  50% of the model's limit, up to the first user message after 70% of the history; nothing if there is none. Two
  calls write the summary, with a system prompt of their own.
* opencode, `packages/opencode/src/session/compaction.ts` and `overflow.ts` of sst/opencode (31e22f65, 2026): compacts
  at the window less the maximal output of 32,000; the newest messages of a quarter of that, at most 15,000 tokens,
  stay, and the summarizer is sent at most 2,000 characters of each result. Its pruning, off by default now, clears
  results older than the last two turns, except the newest 40,000 tokens of them, if that clears more than 20,000.

A summary's words are unknown, so it has SUMMARY_TOKENS and keeps SUMMARY_KEEPS of the values that stand nowhere else.
A compaction that would replace less than twice a summary is not made.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.tokens.models import CacheProfile
from palimpsest_tools.bench.rivals import STUB_TOKENS, Player, Sent, Shown, conversation, masked
from palimpsest_tools.bench.sessions import LoggedSession

SUMMARY_TOKENS: Final = 2_500
"""Size of a summary: the median of 17 recorded compactions of Claude Code and another agent, 9,786 characters."""
SUMMARY_KEEPS: Final = 0.23
"""Share of the values that a summary keeps: 34 of 146 later uses of values that stood nowhere else, after those 17."""
_FILES_MAX: Final = 5
_FILE_TOKENS_MAX: Final = 5_000
_USER_TOKENS_MAX: Final = 20_000
_READERS: Final = ("read", "view", "open_file", "cat")
_SUMMARIZER_TOKENS: Final = 1_000
"""Size of a summarizer's own system prompt."""
_RESULT_TOKENS_MAX: Final = 500
_OWN_PROMPT: Final = "summarizer"

Conversation = Sequence[tuple[Event, Shown]]
Rest = tuple[int, tuple[Shown, ...]]
"""The first event that stays as it is, and pieces that stay of those before it."""


@dataclass(frozen=True, slots=True)
class AgentCompaction:
    """A client's compaction: the size at which it is made, its outcome, and whether its requests hit the cache."""

    threshold: Callable[[int], int]
    keep: Callable[[Conversation, int], Rest | None]
    requests: int = 1
    own_prompt: bool = False
    results_cut: bool = False


def _claude(shown: Conversation, window: int) -> Rest:
    restored: list[Shown] = []
    for event, one in reversed(shown):
        if len(restored) == _FILES_MAX:
            break
        if event.type is EventType.TOOL_RESULT and any(name in (event.tool or "").lower() for name in _READERS):
            share = min(1.0, _FILE_TOKENS_MAX / max(1, one.tokens))
            text = None if share == 1.0 else event.text[: round(len(event.text) * share)]
            restored.append(Shown(one.seq, min(one.tokens, _FILE_TOKENS_MAX), "restored", text))
    return len(shown), tuple(restored)


def _codex(shown: Conversation, window: int) -> Rest:
    left, kept = _USER_TOKENS_MAX, []
    for event, one in reversed(shown):
        if event.type is EventType.USER_MESSAGE and left > 0:
            whole = one.tokens <= left
            text = None if whole else event.text[: len(event.text) * left // one.tokens]
            kept.append(one if whole else Shown(one.seq, left, "cut", text))
            left -= one.tokens
    return len(shown), tuple(reversed(kept))


def _gemini(shown: Conversation, window: int) -> Rest | None:
    sizes = [len(event.text) for event, _ in shown]
    before, split = 0, 0
    for number, (event, _) in enumerate(shown):
        if event.type is EventType.USER_MESSAGE:
            split = number
            if before >= 0.7 * sum(sizes):
                break
        before += sizes[number]
    return (split, ()) if split else None


def _opencode(shown: Conversation, window: int) -> Rest:
    left = min(15_000, max(2_000, (window - 32_000) // 4))
    start = len(shown)
    while start > 0 and shown[start - 1][1].tokens <= left:
        left -= shown[start - 1][1].tokens
        start -= 1
    while start < len(shown) and shown[start][0].type is EventType.TOOL_RESULT:
        start += 1  # no result without its call
    return start, ()


COMPACTIONS: Final[Mapping[str, AgentCompaction]] = {
    "claude": AgentCompaction(lambda window: window - 20_000 - 13_000, _claude),
    "codex": AgentCompaction(lambda window: window * 9 // 10, _codex),
    "gemini": AgentCompaction(lambda window: window // 2, _gemini, requests=2, own_prompt=True),
    "opencode": AgentCompaction(lambda window: window - 32_000, _opencode, own_prompt=True, results_cut=True),
}
AGENT_NAMES: Final = {"claude": "Claude Code", "codex": "Codex", "gemini": "Gemini CLI", "opencode": "opencode"}


def applies(agent: str, session: LoggedSession, window: int) -> bool:
    """Return whether an agent could work with a window: after a compaction, half of its room is left."""
    return COMPACTIONS[agent].threshold(window) >= 2 * (session.prefix_tokens + SUMMARY_TOKENS)


def compacting(agent: str, window: int) -> Player:
    """Return a player with an agent's compaction."""
    rule = COMPACTIONS[agent]

    def play(session: LoggedSession, _: CacheProfile) -> Iterator[Sent]:
        events, whole, prefix = conversation(session)
        seqs = [event.seq for event in events]
        head: tuple[Shown, ...] = ()
        start = made = 0
        for call in session.calls:
            count = bisect_right(seqs, call.events)
            shown = (*head, *whole[start:count])
            before: tuple[Sent, ...] = ()
            if prefix + sum(one.tokens for one in shown) >= rule.threshold(window):
                pairs = list(zip(events[start:count], whole[start:count], strict=True))
                kept = rule.keep(pairs, window)
                if kept is not None and sum(one.tokens for _, one in pairs[: kept[0]]) > 2 * SUMMARY_TOKENS:
                    made += 1
                    before = _asked(rule, (*head, *whole[start : start + kept[0]]), pairs, prefix, call.at)
                    head = (*kept[1], Shown(-made, SUMMARY_TOKENS, f"summary {made}", ""))
                    start += kept[0]
                    shown = (*head, *whole[start:count])
            yield Sent(shown, prefix, call.at, "compacted" if before else None, before=before)

    return play


def _asked(
    rule: AgentCompaction, shown: tuple[Shown, ...], pairs: Conversation, prefix: int, at: float
) -> tuple[Sent, ...]:
    """Return the requests that write a summary of the conversation."""
    if rule.results_cut:
        results = {event.seq for event, _ in pairs if event.type is EventType.TOOL_RESULT}
        shown = tuple(
            replace(one, tokens=min(one.tokens, _RESULT_TOKENS_MAX), version="cut") if one.seq in results else one
            for one in shown
        )
    asked = Sent(shown, prefix, at, written=SUMMARY_TOKENS)
    if rule.own_prompt:
        asked = replace(asked, prefix_tokens=_SUMMARIZER_TOKENS, opening=_OWN_PROMPT)
    again = replace(asked, shown=(*shown, Shown(0, SUMMARY_TOKENS, "first summary", "")))
    return (asked, again)[: rule.requests]


def prune(session: LoggedSession, _: CacheProfile) -> Iterator[Sent]:
    """Clear old results as opencode's pruning does at the end of each turn."""
    users = [event.seq for event in session.events if event.type is EventType.USER_MESSAGE]
    turns = 0

    def decide(results: Sequence[Event], gone: set[int], tokens: int) -> set[int]:
        nonlocal turns
        begun = bisect_right(users, results[-1].seq) if results else 0
        if begun == turns:
            return gone
        turns = begun
        # A turn's pruning is done at its end, and spares this turn and the one before it.
        return gone | _old(results, gone, users[begun - 3] if begun >= 3 else 0)

    yield from masked(session, decide)


def _old(results: Sequence[Event], gone: set[int], until: int) -> set[int]:
    total, found = 0, set()
    for event in reversed(results):
        if event.seq > until:
            continue
        if event.seq in gone:
            break
        total += event.tokens
        if total > 40_000 and event.tokens > STUB_TOKENS:
            found.add(event.seq)
    return found if sum(e.tokens for e in results if e.seq in found) > 20_000 else set()
