"""TTL pruning: once the provider's cache has gone cold, shortening older turns costs nothing.

It is independent of the budget, and happens once each time the session has been idle for the policy's time to live.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from app.core.log.events import EventType
from app.core.plan.context.context import Context, Reduced
from app.core.plan.context.frontier import Frontier, Stub
from app.core.plan.context.item import Item
from app.core.plan.context.stubs import apply_stubs, limited_for
from app.core.plan.reducers.ttl_text import limits_of, looks_up, media_chars, of_content, of_result, without_media
from app.core.policy.evictions import TtlPruning
from app.core.tokens.budget import Budget

REDUCER: Final = "ttl_pruning"
CAUSE: Final = "ttl"

Status = Literal["disabled", "armed", "fresh", "empty", "no_effect", "pruned", "pruned_light"]


def status(
    rules: TtlPruning, now: float | None, used_at: float | None, context: Context, *, changed: bool = False
) -> Status:
    """Return the state of pruning at a call, from the time to live and from whether pruning `changed` the context.

    `armed` means that there was no call before this one, `pruned_light` that all turns are recent ones.
    """
    if not rules.ttl_seconds:
        return "disabled"
    if used_at is None or now is None:
        return "armed"
    if not _is_idle(rules, now, used_at):
        return "fresh"
    if not context.items:
        return "empty"
    if not changed:
        return "no_effect"
    return "pruned_light" if rules.keep_recent_turns >= len(_turns(context)) else "pruned"


def notice(rules: TtlPruning, *, recall: bool = True) -> str:
    """Return the text that tells the model once that its context was pruned."""
    hint = " and names its seq: recall it with that" if recall else ""
    return (
        f"[SYSTEM MESSAGE] Context was pruned because the session TTL ({rules.ttl_seconds}s) was exceeded."
        f" What was cut says so{hint}."
    )


def _is_idle(rules: TtlPruning, now: float, used_at: float) -> bool:
    return now - used_at >= (rules.ttl_seconds or 0) - rules.buffer_seconds


@dataclass(frozen=True, slots=True)
class TtlReducer:
    """Prunes a context once it has gone cold.

    `now` and `used_at` (the view's last call) are in epoch seconds; without both nothing happens. `recall`: the notice
    explains how to recall the cut content.
    """

    rules: TtlPruning
    now: float | None
    used_at: float | None
    recall: bool = True

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Shorten turns older than the recent ones, and bulky content in recent turns that need not stay intact.

        Protected events (I9) and events that are short already stay. The result counts the tokens of the notice.
        """
        if status(self.rules, self.now, self.used_at, context) != "no_effect":
            return Reduced(context, state)
        done = apply_stubs(context, state, list(self._stubs(context)))
        if done.state is state or not self.rules.say:
            return done
        return Reduced(_with_notice(done.context, notice(self.rules, recall=self.recall)), done.state)

    def _stubs(self, context: Context) -> Iterator[Stub]:
        rules = self.rules
        turns = _turns(context)
        recent = set(turns[-rules.keep_recent_turns :] if rules.keep_recent_turns else ())
        intact = set(turns[-rules.keep_recent_intact_turns :] if rules.keep_recent_intact_turns else ())
        stays = context.protected
        images = _images_that_stay(context, rules)
        for item in context.items:
            event = item.event
            done = item.stub is not None and (not item.stub.chars or event.type is EventType.TOOL_CALL)
            if event.turn in intact or event.seq in stays or done or event.body is None:
                continue
            stub = _bulky(item, context, rules, images) if event.turn in recent else _older(item, context, rules)
            if stub is not None and stub.tokens < item.tokens:
                yield stub


def _turns(context: Context) -> list[int]:
    return sorted({item.event.turn for item in context.items} | {context.turn})


def _older(item: Item, context: Context, rules: TtlPruning) -> Stub | None:
    event = item.event
    if event.type is EventType.TOOL_RESULT:
        return _replaced(item, context, of_result(event, rules), "older_than_recent_turns")
    if event.type is EventType.TOOL_CALL:
        return limited_for(
            event, limits_of(rules, rules.field_chars), context.counter, REDUCER, "older_than_recent_turns"
        )
    if (event.body or {}).get("path") is None:
        return None
    text = of_content(event, rules)
    return None if text is None else _replaced(item, context, text, "older_than_recent_turns")


def _bulky(item: Item, context: Context, rules: TtlPruning, images: frozenset[int]) -> Stub | None:
    event = item.event
    if event.type is EventType.TOOL_RESULT and looks_up(event.tool):
        return _replaced(item, context, of_result(event, rules), "looked_up_again")
    content = (event.body or {}).get("content")
    if event.seq not in images and media_chars(content) > rules.base64_chars:
        return _replaced(item, context, without_media(content), "bulky_media")
    return None


def _replaced(item: Item, context: Context, text: str, reason: str) -> Stub:
    result = item.event.type is EventType.TOOL_RESULT
    tokens = context.counter.result(text) if result else context.counter.message(text)
    return Stub(item.event.seq, 0, tokens, item.event.tokens - tokens, REDUCER, reason, text)


def _images_that_stay(context: Context, rules: TtlPruning) -> frozenset[int]:
    """Return the seqs of the newest events with media: as many as the rules allow, and the newest whatever its size."""
    kept: list[int] = []
    room = rules.image_chars
    for item in reversed(context.items):
        chars = media_chars((item.event.body or {}).get("content"))
        if chars <= rules.base64_chars:
            continue
        if len(kept) >= rules.images or (kept and chars > room):
            break
        kept.append(item.event.seq)
        room -= chars
    return frozenset(kept)


def _with_notice(context: Context, text: str) -> Context:
    return replace(context, ephemeral_tokens=context.ephemeral_tokens + context.counter.message(text))
