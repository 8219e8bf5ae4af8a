"""The texts that replace pruned events: their beginning, their shape, and the seq to read the rest by."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.core.log.event import Event, content_text
from app.core.log.events import Json, Part, canonical_json, read_json, too_deep
from app.core.plan.context.limits import Limits, limited
from app.core.policy.evictions import TtlPruning

LOOK_UP: Final = ("search", "fetch", "memsearch")
"""Words in the names of tools whose results are cheaper to look up again than to carry."""
FOUND: Final = ("sid", "url", "title", "path", "mime", "text")
"""The fields that are kept of each search hit."""


def limits_of(rules: TtlPruning, chars: int) -> Limits:
    """Return the limits of a value whose texts may have `chars` characters."""
    return Limits(chars, rules.list_items, rules.dict_keys, rules.base64_chars)


def looks_up(tool: str | None) -> bool:
    """Return whether a tool searches or fetches."""
    return any(word in (tool or "").lower() for word in LOOK_UP)


def of_result(event: Event, rules: TtlPruning) -> str:
    """Return a tool result's replacement: its search hits, or its beginning, as JSON that is marked as cut."""
    text = content_text((event.body or {}).get("content"))
    parsed = _parsed(text)
    if looks_up(event.tool) and (found := _found(parsed)) is not None:
        kept = [{name: item[name] for name in FOUND if item.get(name) is not None} for item in found]
        return _shown({"tool": event.tool, "items": limited(kept, limits_of(rules, rules.result_chars))}, event)
    if parsed is None:
        return _shown({"tool": event.tool, "result": limited(text, limits_of(rules, rules.result_chars))}, event)
    return _shown({"tool": event.tool, "result": limited(parsed, limits_of(rules, rules.field_chars))}, event)


def of_content(event: Event, rules: TtlPruning) -> str | None:
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
    return sum(len(data) for part in content if isinstance(data := _data(part), str))


def _data(part: Mapping[str, Any]) -> Any:
    source = part.get("source")
    if isinstance(source, Mapping):
        return source.get("data")
    url = part.get("image_url")
    url = url.get("url") if isinstance(url, Mapping) else url
    return part.get("data") or (url if isinstance(url, str) and url.startswith("data:") else None)


def _shown(value: dict[str, Json], event: Event) -> str:
    return canonical_json({**value, "truncated": True, "recall_seq": event.seq})


def _parsed(text: str) -> Json:
    try:
        value: Json = read_json(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) and not too_deep(value) else None


def _found(parsed: Json) -> list[Mapping[str, Json]] | None:
    for value in (parsed, *(parsed.values() if isinstance(parsed, Mapping) else ())):
        if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            return value
    return None
