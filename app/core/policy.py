"""What an operator may decide about a view: validated, immutable, with a default and a unit for every knob."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal

from app.core.errors import InvalidPolicy
from app.core.events import Json

RESERVE_RATIO: Final = 0.1
RESERVE_TOKENS_MAX: Final = 16_384


@dataclass(frozen=True, slots=True)
class ToolRule:
    """When results of a tool may be left out; None means this rule never says so."""

    keep_last: int | None = None
    """The newest N results of the tool stay whole; older ones may be left out."""
    age_turns: int | None = None
    """Results at least this many turns old may be left out."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Which tool results may be shown as stubs. A result goes when either rule says so."""

    keep_last: int | None = 8
    age_turns: int | None = None
    tools: Mapping[str, ToolRule] = field(default_factory=dict)
    """Overrides by tool name; an override replaces both rules for that tool."""
    never_evict: tuple[str, ...] = ()
    """Tools whose results always stay whole; wins over everything but the last resort."""

    def rule(self, tool: str | None) -> ToolRule | None:
        """The rule for a tool; None when its results always stay."""
        if tool in self.never_evict:
            return None
        return self.tools.get(tool or "", ToolRule(self.keep_last, self.age_turns))


@dataclass(frozen=True, slots=True)
class DialogueWindow:
    """How much of the conversation is shown at most: whole turns, the newest first. None means no cap."""

    turns: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """All knobs of a view."""

    window_tokens: int | None = None
    """The model's input window; None: the model's own."""
    reserve_tokens: int | None = None
    """Left free for the answer; None: a tenth of the window, at most 16,384."""
    injection_reserve_tokens: int = 0
    """Left free for injected content."""
    evict: Literal["on_pressure", "every_assembly"] = "on_pressure"
    """`on_pressure`: nothing moves until the target forces it. `every_assembly`: every rule applies at every call."""
    low_water: float = 0.7
    """Once forced, reduce to this share of the target, so that the cached prefix then stands for many calls."""
    soft_ratio: float = 0.8
    """Share of the target from which an append reports soft pressure."""
    retention: Retention = field(default_factory=Retention)
    dialogue_window: DialogueWindow = field(default_factory=DialogueWindow)
    authors: tuple[str, ...] | None = None
    """Only events of these authors, and events without one, are shown; None: all."""


DEFAULT: Final = Policy()


def parse_policy(document: Json) -> Policy:
    """A policy from its JSON document. Raises InvalidPolicy naming the knob."""
    values = _object(document, "", Policy)
    retention = _retention(values.pop("retention")) if "retention" in values else Retention()
    window = DialogueWindow()
    if "dialogue_window" in values:
        raw = _object(values.pop("dialogue_window"), "dialogue_window", DialogueWindow)
        window = DialogueWindow(**{k: _whole(v, f"dialogue_window.{k}", least=1) for k, v in raw.items()})
    authors = _names(values.pop("authors"), "authors") if values.get("authors") is not None else None
    policy = Policy(
        window_tokens=_whole(values.get("window_tokens"), "window_tokens", least=1),
        reserve_tokens=_whole(values.get("reserve_tokens"), "reserve_tokens"),
        injection_reserve_tokens=_whole(values.get("injection_reserve_tokens", 0), "injection_reserve_tokens") or 0,
        evict=_choice(values.get("evict", DEFAULT.evict), "evict"),
        low_water=_share(values.get("low_water", DEFAULT.low_water), "low_water"),
        soft_ratio=_share(values.get("soft_ratio", DEFAULT.soft_ratio), "soft_ratio"),
        retention=retention,
        dialogue_window=window,
        authors=authors,
    )
    if policy.window_tokens is not None:
        held = (policy.reserve_tokens or 0) + policy.injection_reserve_tokens
        if held >= policy.window_tokens:
            knob = "reserve_tokens" if policy.reserve_tokens else "injection_reserve_tokens"
            raise InvalidPolicy(f"reserves of {held} tokens leave nothing of {policy.window_tokens}", knob=knob)
    return policy


def _retention(document: Json) -> Retention:
    raw = _object(document, "retention", Retention)
    tools: dict[str, ToolRule] = {}
    overrides = raw.get("tools", {})
    if not isinstance(overrides, Mapping):
        raise InvalidPolicy("must be an object of tool names", knob="retention.tools")
    for name, rule in overrides.items():
        knob = f"retention.tools.{name}"
        values = _object(rule, knob, ToolRule)
        tools[str(name)] = ToolRule(**{k: _whole(v, f"{knob}.{k}") for k, v in values.items()})
    return Retention(
        keep_last=_whole(raw.get("keep_last", Retention().keep_last), "retention.keep_last"),
        age_turns=_whole(raw.get("age_turns"), "retention.age_turns", least=1),
        tools=tools,
        never_evict=_names(raw.get("never_evict", []), "retention.never_evict"),
    )


def _object(document: Json, knob: str, shape: type[Any]) -> dict[str, Json]:
    if not isinstance(document, Mapping):
        raise InvalidPolicy("must be an object", knob=knob or "policy")
    known = {f.name for f in fields(shape)}
    for name in document:
        if name not in known:
            where = f"{knob}.{name}" if knob else str(name)
            raise InvalidPolicy(f"unknown knob; known here: {', '.join(sorted(known))}", knob=where)
    return dict(document)


def _whole(value: Json, knob: str, *, least: int = 0) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**31 - 1:
        raise InvalidPolicy(f"must be a whole number of {least} or more", knob=knob)
    return value


def _share(value: Json, knob: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise InvalidPolicy("must be a share above 0 and at most 1", knob=knob)
    return float(value)


def _choice(value: Json, knob: str) -> Literal["on_pressure", "every_assembly"]:
    if value == "on_pressure":
        return "on_pressure"
    if value == "every_assembly":
        return "every_assembly"
    raise InvalidPolicy("must be on_pressure or every_assembly", knob=knob)


def _names(value: Json, knob: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise InvalidPolicy("must be a list of names", knob=knob)
    return tuple(value)
