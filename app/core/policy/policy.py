"""What an operator may decide about a view: validated, immutable, with a default and a unit for every knob."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.core.errors import InvalidPolicy
from app.core.log.events import LAYERS, Json
from app.core.policy import knobs
from app.core.policy.knobs import knob as _knob
from app.core.policy.overflow import SETS
from app.core.policy.shows import KINDS, ViewFilter, mixes

RESERVE_RATIO: Final = 0.1
RESERVE_TOKENS_MAX: Final = 16_384
INJECTION_SHARE: Final = 0.125
RETAIN_DAYS_MAX: Final = 36_500

HEURISTICS: Final = ("heuristic", "ceil4", "bytes4+1", "chars4min1")
ESTIMATORS: Final = (
    "heuristic",
    "tiktoken:o200k_base",
    "tiktoken:cl100k_base",
    "claude-3:o200k_base",
    "claude-4.7:o200k_base",
    "ceil4",
    "bytes4+1",
    "chars4min1",
)
EVICT: Final = ("economic", "on_pressure", "on_cache_expiry", "every_assembly")
MARKERS: Final = ("tail", "rounds", "prefix", "none")
LEAN: Final = ("back", "forward")
SUMMARIZERS: Final = ("extractive", "anthropic", "openai")
STYLES: Final = ("structured", "planned", "narrative")
COVER_VIEWS: Final = ("all", "clip", "latest")
SCOPES: Final = ("level", "oldest", "middle")
SPLIT_TURN: Final = ("prefix", "protect_current", "advance")
HIDE: Final = ("economic", "tail", "any")


@dataclass(frozen=True, slots=True)
class ToolRule:
    """When results of one tool may be left out; replaces the general rules for it."""

    keep_last: int | None = _knob("whole", None, "The newest so many results of the tool stay whole.", unit="results")
    age_turns: int | None = _knob("whole", None, "Results at least this old may go.", unit="turns", least=1)
    min_tokens: int | None = _knob("whole", None, "Smaller results stay; none: the general rule.", unit="tokens")


@dataclass(frozen=True, slots=True)
class Retention:
    """Which tool results may be shown as stubs."""

    keep_last: int | None = _knob(
        "whole",
        2,
        "The newest so many results stay whole; none: the count says nothing.",
        unit="results",
        optional=True,
    )
    per_tool: bool = _knob("flag", False, "Whether `keep_last` counts each tool's results by themselves.")
    age_turns: int | None = _knob("whole", None, "Results at least this old may go.", unit="turns", least=1)
    superseded: bool = _knob("flag", True, "Whether a result goes that a newer one of the same call or file repeats.")
    min_tokens: int = _knob("whole", 300, "Smaller results and arguments always stay.", unit="tokens")
    arguments: bool = _knob("flag", True, "Whether long arguments of old calls are shortened as well.")
    identifiers: float = _knob(
        "share", 0.1, "How much of a result its stub may keep as paths and identifiers seen nowhere else.", zero=True
    )
    dense: float = _knob(
        "share", 0.5, "Results of which paths and identifiers make up more than this are listings, and stay."
    )
    tools: Mapping[str, ToolRule] = _knob("groups", dict, "Rules by tool name.", shape=ToolRule)
    never_evict: tuple[str, ...] = _knob("names", (), "Tools whose results go only as a last resort.")

    def rule(self, tool: str | None) -> ToolRule | None:
        """The rule for a tool; None when its results always stay."""
        if tool in self.never_evict:
            return None
        own = self.tools.get(tool or "")
        if own is None:
            return ToolRule(self.keep_last, self.age_turns, self.min_tokens)
        return own if own.min_tokens is not None else ToolRule(own.keep_last, own.age_turns, self.min_tokens)


@dataclass(frozen=True, slots=True)
class DialogueWindow:
    """How much of the conversation is shown at most: whole turns, the newest first."""

    turns: int | None = _knob("whole", None, "At most so many turns.", unit="turns", least=1)
    tokens: int | None = _knob("whole", None, "At most so much, in whole turns.", unit="tokens", least=1)


@dataclass(frozen=True, slots=True)
class Caps:
    """At most so much of the target for one kind of content."""

    tool_results: float | None = _knob("share", None, "Tool results; the oldest become stubs.")


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a context is reduced. The target always triggers; this can only make it earlier."""

    ratio: float | None = _knob("share", None, "Above this share of the window.")
    reserve: str | int | None = _knob(
        "reserve", None, 'Above the window less this many tokens; "auto": by the window\'s size.', unit="tokens"
    )
    tokens: int | None = _knob("whole", None, "Above so many tokens.", unit="tokens", least=1)


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the log is cut when its older part must go: at most one of the three sizes is given."""

    keep_tokens: str | int | None = _knob(
        "reserve", None, 'Keep about so many of the newest tokens; "auto": by the window\'s size.', unit="tokens"
    )
    keep_ratio: float | None = _knob("share", None, "Keep this share of the window.")
    keep_messages: int | None = _knob("whole", None, "Keep so many of the newest events.", unit="events", least=1)
    keep_turns: int | None = _knob("whole", None, "Keep so many of the newest turns.", unit="turns", least=1)
    keep_recent_turns: int = _knob(
        "whole", 0, "With `keep_ratio`: keep what so many of the newest turns take, if that is more.", unit="turns"
    )
    lean: str = _knob(
        "choice",
        "back",
        "Where the cut goes when it would fall on a tool result: back, so that more stays, or forward.",
        choices=LEAN,
    )
    split_turn: str = _knob(
        "choice",
        "protect_current",
        "What becomes of a turn the cut falls into: its beginning goes, the running turn "
        "is never cut, or the cut moves on to the next turn.",
        choices=SPLIT_TURN,
    )


@dataclass(frozen=True, slots=True)
class TtlPruning:
    """What goes when the session has been idle for so long that the provider's cache is cold."""

    ttl_seconds: int | None = _knob("whole", None, "Idle so long; none: never.", unit="seconds")
    buffer_seconds: int = _knob("whole", 10, "Taken off, so that the cache is not missed by a moment.", unit="seconds")
    keep_recent_turns: int = _knob("whole", 10, "So many turns are not replaced.", unit="turns")
    keep_recent_intact_turns: int = _knob("whole", 2, "So many turns are not touched at all.", unit="turns")
    text_chars: int = _knob("whole", 4000, "Longer texts are cut.", unit="characters")
    result_chars: int = _knob(
        "whole",
        400,
        "Longer results that are plain text are cut, and the texts of what a search found.",
        unit="characters",
    )
    field_chars: int = _knob(
        "whole",
        1000,
        "Longer texts in a call's arguments, and in a result that is JSON, are cut.",
        unit="characters",
        least=1,
    )
    base64_chars: int = _knob("whole", 4000, "Longer base64 is left out.", unit="characters")
    list_items: int = _knob("whole", 50, "Longer lists are cut.", unit="items")
    dict_keys: int = _knob("whole", 80, "Larger objects are cut.", unit="keys")
    images: int = _knob("whole", 2, "The newest so many images of recent turns stay.", unit="images")
    image_chars: int = _knob("whole", 1_000_000, "And no more than this of their data.", unit="characters")
    say: bool = _knob("flag", True, "Whether a line in the context says that it was pruned.")


@dataclass(frozen=True, slots=True)
class Summarize:
    """How older parts of the log are summarized, between turns and by a worker."""

    enabled: bool = _knob("flag", True, "Whether summaries are written for this policy.")
    summarizer: str | None = _knob("choice", None, "Who writes them; none: the server's own.", choices=SUMMARIZERS)
    model: str | None = _knob("name", None, "The model that writes them; none: the summarizer's own.")
    style: str = _knob(
        "choice",
        "structured",
        "The form that is asked for: under headings, with or without one for what is not started, or a narrative.",
        choices=STYLES,
    )
    view: str = _knob(
        "choice",
        "all",
        "What is shown of the summaries: all, the first and last ones, or the latest, which then stands for all.",
        choices=COVER_VIEWS,
    )
    scope: str = _knob(
        "choice",
        "level",
        "Which ones become one when there are too many: the oldest of one depth, all but the last ones, or those in "
        "the middle.",
        choices=SCOPES,
    )
    chunk_tokens: int = _knob("whole", 20_000, "A summary is of about so much.", unit="tokens", least=100)
    chunk_events: int | None = _knob("whole", None, "Or of so many events.", unit="events", least=1)
    max_tokens: int = _knob(
        "whole",
        2_800,
        "The most a summary of events may take; one that several became may take more.",
        unit="tokens",
        least=50,
    )
    max_ratio: float | None = _knob(
        "share",
        None,
        "And at most this share of the target; none: a quarter for one that stands for all, else 3%.",
    )
    prefix_max_tokens: int = _knob("whole", 400, "The most for the beginning of a split turn.", unit="tokens", least=50)
    clip_first: int = _knob("whole", 2, "The first ones are shown.", unit="summaries")
    clip_last: int = _knob("whole", 2, "The last ones are shown, and stay apart.", unit="summaries", least=1)
    buffer: int = _knob("whole", 2, "So many more may stand side by side before some become one.", unit="summaries")
    rebuild: bool = _knob("flag", False, "Whether several become one from the events themselves.")
    keep_ratio: float = _knob(
        "share", 0.3, "This share of the target stays unsummarized, at most 16,000 tokens, where no cut is set."
    )
    role: str = _knob("choice", "user", "Who says them to the model.", choices=("user", "system"))
    on_fail: str = _knob(
        "choice",
        "extractive",
        "When a summarizer fails for good: written without a model, and again later, or not at all.",
        choices=("extractive", "unchanged"),
    )


@dataclass(frozen=True, slots=True)
class Economics:
    """When evictions that nothing forces are worth their price."""

    factor: float = _knob(
        "number",
        1.0,
        "They are applied once carrying what could go has cost this many times what rewriting costs.",
        unit="times",
        most=100,
    )
    least_tokens: int = _knob("whole", 1_000, "Less than this is not worth a new epoch.", unit="tokens")
    on_cold: bool = _knob("flag", True, "Whether they are applied when the cache is cold anyway.")
    at_risk: float = _knob(
        "share",
        0.0,
        "By how much of the bill for sending everything a run may end above it; 0: it never does.",
        zero=True,
    )


@dataclass(frozen=True, slots=True)
class VisibilityRules:
    """What an agent may hide of its context, unless it insists."""

    hide: str = _knob(
        "choice",
        "economic",
        "What pays while the cache is warm, what stands behind the `pre_tail` cache breakpoint, or anything.",
        choices=HIDE,
    )
    hide_tail_tokens_max: int | None = _knob("whole", None, "Nothing with more than this behind it.", unit="tokens")


@dataclass(frozen=True, slots=True)
class CacheRules:
    """What the provider's cache does; what is not given is the model's own (the `cache` table)."""

    ttl_seconds: int | None = _knob("whole", None, "How long an entry lives after its last use.", unit="seconds")
    minimum_tokens: int | None = _knob("whole", None, "The smallest prefix that is cached.", unit="tokens")
    read_price: float | None = _knob("number", None, "Of a cached token, in input tokens.", unit="times", most=100)
    write_price: float | None = _knob("number", None, "Of a written token, in input tokens.", unit="times", most=100)
    lookback_blocks: int | None = _knob(
        "whole", None, "How far back a marker finds an entry, its own block the first.", unit="blocks", least=1
    )
    markers: int | None = _knob("whole", None, "The most markers a request may carry.", unit="markers")


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost, for the ledger; cached ones by `cache`'s prices of the input's."""

    input_per_million: float | None = _knob(
        "number", None, "What a million input tokens cost, for the ledger; none: it counts tokens only.", most=1e6
    )
    output_per_million: float | None = _knob("number", None, "And a million output tokens.", most=1e6)
    currency: str = _knob("name", "USD", "In which currency.")


@dataclass(frozen=True, slots=True)
class OverflowRules:
    """Which errors of a provider mean that the context was too long."""

    patterns: tuple[str, ...] = _knob(
        "names",
        (),
        "Sets of patterns that apply whole, also those of their patterns that match more than they should; what is "
        f"safe of each set always applies. Known: {', '.join(SETS)}.",
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """All knobs of a view."""

    window_tokens: int | None = _knob("whole", None, "The model's input window; none: its own.", unit="tokens", least=1)
    reserve_tokens: int | None = _knob(
        "whole", None, "Left free for the answer; none: a tenth of the window, at most 16,384.", unit="tokens"
    )
    injection_reserve_tokens: int | None = _knob(
        "whole",
        None,
        "Left free for injected content; none: what a call's own injections take, at most an eighth of the window.",
        unit="tokens",
    )
    outside_tokens: int | None = _knob(
        "whole",
        None,
        "What the client sends beside the request (tools, a system prompt of its own), as its provider counts; none: "
        "what the session says, else what reported usage tells.",
        unit="tokens",
    )
    estimator: str | None = _knob("choice", None, "What counts tokens; none: what suits the model.", choices=ESTIMATORS)
    heuristic: str = _knob(
        "choice",
        "heuristic",
        "What counts, where no `estimator` is named, for models that OpenAI's tokenizers do not count: what suits them "
        "(Claude's models by their scale, others by the kind of text), or a rule of thumb.",
        choices=HEURISTICS,
    )
    trigger: Trigger = _knob("group", Trigger, "When a context is reduced by what summaries stand for.", shape=Trigger)
    evict: str = _knob(
        "choice",
        "economic",
        "When evictions are applied: when they pay, only when the target forces them, when the "
        "cache is cold or the target forces them, or at every assembly.",
        choices=EVICT,
    )
    low_water: float = _knob(
        "share",
        0.7,
        "Once forced, reduce to this share of the target, so that the prefix then stands for many calls.",
        unit="share",
    )
    soft_ratio: float = _knob("share", 0.8, "From this share of the target on, an append reports soft pressure.")
    ttl_pruning: TtlPruning = _knob("group", TtlPruning, "What goes when the cache is cold.", shape=TtlPruning)
    retention: Retention = _knob("group", Retention, "Which tool results may become stubs.", shape=Retention)
    caps: Caps = _knob("group", Caps, "The most that one kind of content may take.", shape=Caps)
    dialogue_window: DialogueWindow = _knob(
        "group", DialogueWindow, "How much of the conversation is shown at most.", shape=DialogueWindow
    )
    summarize: Summarize = _knob("group", Summarize, "How older parts are summarized.", shape=Summarize)
    cut: Cut = _knob(
        "group", Cut, "What stays verbatim of the newest part: it is summarized last and dropped last.", shape=Cut
    )
    economics: Economics = _knob("group", Economics, "When evictions pay.", shape=Economics)
    cache: CacheRules = _knob("group", CacheRules, "What the provider's cache does.", shape=CacheRules)
    prices: Prices = _knob("group", Prices, "What tokens cost.", shape=Prices)
    overflow: OverflowRules = _knob("group", OverflowRules, "Errors that mean: too long.", shape=OverflowRules)
    visibility: VisibilityRules = _knob("group", VisibilityRules, "What may be hidden.", shape=VisibilityRules)
    markers: str = _knob(
        "choice",
        "tail",
        "Where cache breakpoints stand: behind the last call and the tail, behind rounds and turns, "
        "behind the system prompt only, or nowhere.",
        choices=MARKERS,
    )
    layers: tuple[str, ...] = _knob("names", LAYERS, f"Layers that are shown once they are put: {', '.join(LAYERS)}.")
    recall: bool = _knob(
        "flag",
        False,
        "Whether the agent has the recall tool although the log's tools do not hold it: then what is left out tells "
        "how to get it back.",
    )
    authors: tuple[str, ...] | None = _knob(
        "names",
        None,
        "Only events of these authors, and events without one, are shown; with a `!` before each, all but these; none: "
        "all.",
    )
    types: tuple[str, ...] | None = _knob(
        "names",
        None,
        "Only events of these types are shown; with a `!` before each, all but these; none: all. A call and its result "
        f"go together. Known: {', '.join(KINDS)}.",
    )
    retain_calls_days: int | None = _knob(
        "whole",
        None,
        "Records of calls are kept at least so long; none: as long as the server keeps them.",
        unit="days",
        least=1,
        most=RETAIN_DAYS_MAX,
    )

    @property
    def shows(self) -> ViewFilter:
        """What a view of this policy shows."""
        return ViewFilter(*(None if names is None else frozenset(names) for names in (self.authors, self.types)))

    def kept_days(self, server_days: int) -> int | None:
        """How long a call's record is kept, where the server's own time is `server_days` (0: for ever).

        The longer of both, so that a policy only lengthens it; None: for ever.
        """
        return max(server_days, self.retain_calls_days or 0) if server_days else None


DEFAULT: Final = Policy()


def parse_policy(document: Json) -> Policy:
    """A policy from its JSON document. Raises InvalidPolicy naming the knob."""
    policy: Policy = knobs.read_group(document, "", Policy)
    _check_sense(policy)
    return policy


def _check_sense(policy: Policy) -> None:
    """Raise InvalidPolicy for knobs that contradict one another."""
    if policy.window_tokens is not None:
        held = (policy.reserve_tokens or 0) + (policy.injection_reserve_tokens or 0) + (policy.outside_tokens or 0)
        if held >= policy.window_tokens:
            named = ("reserve_tokens", "injection_reserve_tokens", "outside_tokens")
            knob = max(named, key=lambda name: getattr(policy, name) or 0)
            raise InvalidPolicy(f"reserves of {held} tokens leave nothing of {policy.window_tokens}", knob=knob)
        for knob, value in (("cut.keep_tokens", policy.cut.keep_tokens), ("trigger.tokens", policy.trigger.tokens)):
            if isinstance(value, int) and value > policy.window_tokens - held:
                raise InvalidPolicy(f"{value} is more than the target of a window of {policy.window_tokens}", knob=knob)
    sizes = [
        k for k in ("keep_tokens", "keep_ratio", "keep_messages", "keep_turns") if getattr(policy.cut, k) is not None
    ]
    if len(sizes) > 1:
        raise InvalidPolicy(f"only one of {', '.join(sizes)} can be kept", knob=f"cut.{sizes[1]}")
    if policy.cut.keep_ratio and policy.trigger.ratio and policy.cut.keep_ratio > policy.trigger.ratio:
        raise InvalidPolicy("more is kept than triggers the cut", knob="cut.keep_ratio")
    pruning = policy.ttl_pruning
    if pruning.ttl_seconds and pruning.buffer_seconds >= pruning.ttl_seconds:
        raise InvalidPolicy("must be less than ttl_seconds", knob="ttl_pruning.buffer_seconds")
    if pruning.keep_recent_intact_turns > pruning.keep_recent_turns:
        raise InvalidPolicy("must not exceed keep_recent_turns", knob="ttl_pruning.keep_recent_intact_turns")
    for name in policy.overflow.patterns:
        if name not in SETS:
            raise InvalidPolicy(f"no set of patterns is named {name!r}", knob="overflow.patterns")
    _check_shows(policy)
    for name in policy.layers:
        if name not in LAYERS:
            raise InvalidPolicy(f"no layer is named {name!r}", knob="layers")
    cache = policy.cache
    if cache.read_price is not None and cache.write_price is not None and cache.read_price >= cache.write_price:
        raise InvalidPolicy("a read must be cheaper than a write", knob="cache.read_price")


def _check_shows(policy: Policy) -> None:
    for knob, names in (("authors", policy.authors or ()), ("types", policy.types or ())):
        if mixes(names):
            raise InvalidPolicy(f"either the {knob} that are shown or, each with a `!`, those that are not", knob=knob)
    for name in policy.types or ():
        if name.removeprefix("!") not in KINDS:
            raise InvalidPolicy(f"no type that can be left out is named {name!r}", knob="types")


def json_schema() -> dict[str, Json]:
    """The JSON Schema of a policy document: each knob with its sentence, its unit and its default."""
    return knobs.json_schema(Policy)


def knob_table() -> str:
    """All knobs as a Markdown table, for docs/policies.md."""
    lines = ["| knob | default | what |", "|---|---|---|"]
    for where, known, default in knobs.rows(Policy):
        shown = "" if default is None or default == () else f"`{str(default).lower() if default is not None else ''}`"
        choices = f" One of {', '.join(f'`{choice}`' for choice in known.choices)}." if known.choices else ""
        unit = f" In {known.unit}." if known.unit else ""
        lines.append(f"| `{where}` | {shown} | {known.sentence}{choices}{unit} |")
    return "\n".join(lines)
