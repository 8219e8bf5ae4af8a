"""Pruning of a context when its session was idle until the provider's cache expired."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from app.core.log.event import Event, content_text
from app.core.log.events import EventType, Json, Part, canonical_json, read_json, too_deep
from app.core.plan.state.context import Context, Reduced
from app.core.plan.state.frontier import Frontier, Stub
from app.core.plan.state.items import Item
from app.core.plan.state.stubs import apply_stubs, limited_for, replaced_by
from app.core.plan.state.wording import Limits, limited
from app.core.policy.groups import TtlPruning
from app.core.tokens.budget import Budget

SEARCH_WORDS: Final = ("search", "fetch")
"""Words in the names of tools whose results are cheaper to look up again than to carry."""
HIT_FIELDS: Final = ("sid", "url", "title", "path", "mime", "text")
"""The fields that are kept of each search hit."""


def limits_of(rules: TtlPruning, chars: int) -> Limits:
    """Return the limits of a value whose texts may have `chars` characters."""
    return Limits(chars, rules.list_items, rules.dict_keys, rules.base64_chars)


def searches_or_fetches(tool: str | None) -> bool:
    """Return whether a tool searches or fetches."""
    return any(word in (tool or "").lower() for word in SEARCH_WORDS)


def prune_result(event: Event, rules: TtlPruning) -> str:
    """Return a tool result's replacement: its search hits, or its beginning, as JSON that is marked as cut."""
    text = content_text((event.body or {}).get("content"))
    parsed = _parsed(text)
    if searches_or_fetches(event.tool) and (found := _find_hits(parsed)) is not None:
        kept = [{name: item[name] for name in HIT_FIELDS if item.get(name) is not None} for item in found]
        return _mark_as_cut({"tool": event.tool, "items": limited(kept, limits_of(rules, rules.result_chars))}, event)
    if parsed is None:
        return _mark_as_cut({"tool": event.tool, "result": limited(text, limits_of(rules, rules.result_chars))}, event)
    return _mark_as_cut({"tool": event.tool, "result": limited(parsed, limits_of(rules, rules.field_chars))}, event)


def prune_content(event: Event, rules: TtlPruning) -> str | None:
    """Return the replacement of a file (path and size) or another text (its beginning); None for a short text."""
    body = event.body or {}
    text = content_text(body.get("content"))
    if body.get("mime"):
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        return (
            f"[TRUNCATED FILE] path={body.get('path')} mime={body['mime']} size={len(text)}"
            f" summary={first[:80]} (recall it with seq {event.seq})"
        )
    if len(text) <= rules.text_chars:
        return None
    return f"[TRUNCATED] {text[: rules.text_chars]}... (recall it with seq {event.seq})"


def without_media(content: str | Sequence[Part] | None) -> str:
    """Return the text of content, without its images and files."""
    text = content_text(content)
    return text if text.strip() else "[media left out]"


def media_chars(content: Any) -> int:
    """Return the number of base64 characters in an event's content."""
    if not isinstance(content, (list, tuple)):
        return 0
    return sum(len(data) for part in content if isinstance(data := _media_data(part), str))


def _media_data(part: Mapping[str, Any]) -> Any:
    source = part.get("source")
    if isinstance(source, Mapping):
        return source.get("data")
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, Mapping) else url
    return part.get("data") or (url if isinstance(url, str) and url.startswith("data:") else None)


def _mark_as_cut(value: dict[str, Json], event: Event) -> str:
    return canonical_json({**value, "truncated": True, "recall_seq": event.seq})


def _parsed(text: str) -> Json:
    try:
        value: Json = read_json(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) and not too_deep(value) else None


def _find_hits(parsed: Json) -> list[Mapping[str, Json]] | None:
    for value in (parsed, *(parsed.values() if isinstance(parsed, Mapping) else ())):
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            return value
    return None


REDUCER: Final = "ttl_pruning"
CAUSE: Final = "ttl"

Status = Literal["disabled", "armed", "fresh", "empty", "no_effect", "pruned", "pruned_light"]
DISABLED: Final[Status] = "disabled"


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
    """Prunes a context when the view's last call, `used_at`, is `ttl_seconds` less `buffer_seconds` ago, or longer.

    `now` and `used_at` are in Unix seconds; if either is None, nothing is pruned. `recall`: the notice explains how to
    recall the cut content.
    """

    rules: TtlPruning
    now: float | None
    used_at: float | None
    recall: bool = True

    def reduce(self, context: Context, budget: Budget, state: Frontier) -> Reduced:
        """Shorten turns older than the recent ones, and bulky content in recent turns that need not stay intact.

        Protected events (I9) and events that are short already stay. The result counts the tokens of the notice.
        """
        if status(self.rules, self.now, self.used_at, context) != "no_effect":  # disabled, armed, fresh or empty
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
            is_short = item.stub is not None and (not item.stub.chars or event.type is EventType.TOOL_CALL)
            if event.turn in intact or event.seq in stays or is_short or event.body is None:
                continue
            stub = (
                _stub_bulky(item, context, rules, images) if event.turn in recent else _stub_older(item, context, rules)
            )
            if stub is not None and stub.tokens < item.tokens:
                yield stub


def _turns(context: Context) -> list[int]:
    return sorted({item.event.turn for item in context.items} | {context.turn})


def _stub_older(item: Item, context: Context, rules: TtlPruning) -> Stub | None:
    event = item.event
    if event.type is EventType.TOOL_RESULT:
        return replaced_by(event, prune_result(event, rules), context.counter, REDUCER, "older_than_recent_turns")
    if event.type is EventType.TOOL_CALL:
        return limited_for(
            event, limits_of(rules, rules.field_chars), context.counter, REDUCER, "older_than_recent_turns"
        )
    if (event.body or {}).get("path") is None:
        return None
    text = prune_content(event, rules)
    return None if text is None else replaced_by(event, text, context.counter, REDUCER, "older_than_recent_turns")


def _stub_bulky(item: Item, context: Context, rules: TtlPruning, images: frozenset[int]) -> Stub | None:
    event = item.event
    if event.type is EventType.TOOL_RESULT and searches_or_fetches(event.tool):
        return replaced_by(event, prune_result(event, rules), context.counter, REDUCER, "looked_up_again")
    content = (event.body or {}).get("content")
    if event.seq not in images and media_chars(content) > rules.base64_chars:
        return replaced_by(event, without_media(content), context.counter, REDUCER, "bulky_media")
    return None


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
