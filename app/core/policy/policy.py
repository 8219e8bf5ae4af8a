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

    keep_last: int | None = _knob(
        "whole", None, "Number of the newest results of the tool that stay whole. Null: their number does not matter."
    )
    age_turns: int | None = _knob(
        "whole", None, "Age in turns from which results may be evicted. Null: age does not matter.", least=1
    )
    min_tokens: int | None = _knob(
        "whole", None, "Size below which results stay. Null: as `retention.min_tokens`.", unit="tokens"
    )


@dataclass(frozen=True, slots=True)
class Retention:
    """Which tool results may be shown as stubs."""

    keep_last: int | None = _knob(
        "whole",
        2,
        "Number of the newest tool results that stay whole. Null: their number does not matter.",
        optional=True,
    )
    per_tool: bool = _knob("flag", False, "Whether `keep_last` counts the results of each tool separately.")
    age_turns: int | None = _knob(
        "whole", None, "Age in turns from which results may be evicted. Null: age does not matter.", least=1
    )
    superseded: bool = _knob(
        "flag", True, "Whether a result may be evicted when a newer one of the same call or file repeats it."
    )
    min_tokens: int = _knob(
        "whole", 300, "Size below which results stay, unless the budget forces them out.", unit="tokens"
    )
    arguments: bool = _knob("flag", True, "Whether long arguments of old tool calls are shortened as well.")
    identifiers: float = _knob(
        "share",
        0.1,
        "Share of an evicted result that its stub may keep, as paths and identifiers that appear nowhere else.",
        zero=True,
    )
    dense: float = _knob(
        "share",
        0.5,
        "Share of paths and identifiers in a result above which it counts as a listing and stays, unless it is large "
        "or the budget forces it out.",
    )
    tools: Mapping[str, ToolRule] = _knob(
        "groups", dict, "Rules for single tools, by name, in place of the general ones.", shape=ToolRule
    )
    never_evict: tuple[str, ...] = _knob("names", (), "Tools whose results are evicted only as a last resort.")

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

    turns: int | None = _knob("whole", None, "Maximum number of turns shown. Null: no limit.", least=1)
    tokens: int | None = _knob(
        "whole", None, "Maximum size of the turns shown, in whole turns. Null: no limit.", unit="tokens", least=1
    )


@dataclass(frozen=True, slots=True)
class Caps:
    """At most so much of the target for one kind of content."""

    tool_results: float | None = _knob(
        "share", None, "Maximum share of the target for tool results; beyond it the oldest become stubs. Null: no cap."
    )


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a context is reduced. The target always triggers; this can only make it earlier."""

    ratio: float | None = _knob(
        "share", None, "Share of the window above which a context is reduced. Null: no such trigger."
    )
    reserve: str | int | None = _knob(
        "reserve",
        None,
        'Part of the window that must stay free, else a context is reduced; "auto" sets it by the size of the window. '
        "Null: no such trigger.",
        unit="tokens",
    )
    tokens: int | None = _knob(
        "whole", None, "Size above which a context is reduced. Null: no such trigger.", unit="tokens", least=1
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the log is cut when its older part must go: at most one of the three sizes is given."""

    keep_tokens: str | int | None = _knob(
        "reserve",
        None,
        'Size of the newest part to keep; "auto" sets it by the size of the window. Null: not set.',
        unit="tokens",
    )
    keep_ratio: float | None = _knob(
        "share", None, "Size of the newest part to keep, as a share of the window. Null: not set."
    )
    keep_messages: int | None = _knob("whole", None, "Number of the newest events to keep. Null: not set.", least=1)
    keep_turns: int | None = _knob("whole", None, "Number of the newest turns to keep. Null: not set.", least=1)
    keep_recent_turns: int = _knob(
        "whole", 0, "Number of the newest turns that are kept in any case, if `keep_ratio` would keep less."
    )
    lean: str = _knob(
        "choice",
        "back",
        "Where the cut point moves if it falls on a tool result: `back`, which keeps more, or `forward`.",
        choices=LEAN,
    )
    split_turn: str = _knob(
        "choice",
        "protect_current",
        "What happens to the turn that the cut point falls into: it may be split (`prefix`), it may be split unless "
        "it is the running turn (`protect_current`), or the cut point moves on to the next turn (`advance`).",
        choices=SPLIT_TURN,
    )


@dataclass(frozen=True, slots=True)
class TtlPruning:
    """What goes when the session has been idle for so long that the provider's cache is cold."""

    ttl_seconds: int | None = _knob(
        "whole",
        None,
        "Idle time after which contexts are pruned, usually the lifetime of the provider's cache. Null: never.",
        unit="seconds",
    )
    buffer_seconds: int = _knob("whole", 10, "Safety margin that is subtracted from `ttl_seconds`.", unit="seconds")
    keep_recent_turns: int = _knob(
        "whole",
        10,
        "Number of the newest turns in which only media and the results of searches and fetches are pruned.",
    )
    keep_recent_intact_turns: int = _knob("whole", 2, "Number of the newest turns that are not pruned at all.")
    text_chars: int = _knob(
        "whole", 4000, "Length above which the text of an event with a `path` is cut.", unit="characters"
    )
    result_chars: int = _knob(
        "whole",
        400,
        "Length above which tool results in plain text, and the texts of search hits, are cut.",
        unit="characters",
    )
    field_chars: int = _knob(
        "whole",
        1000,
        "Length above which texts in the arguments of tool calls and in JSON results are cut.",
        unit="characters",
        least=1,
    )
    base64_chars: int = _knob("whole", 4000, "Length above which base64 data is left out.", unit="characters")
    list_items: int = _knob("whole", 50, "Number of items above which lists are cut.")
    dict_keys: int = _knob("whole", 80, "Number of keys above which objects are cut.")
    images: int = _knob("whole", 2, "Number of the newest images in recent turns that stay.")
    image_chars: int = _knob("whole", 1_000_000, "Maximum length of the data of these images.", unit="characters")
    say: bool = _knob("flag", True, "Whether a line in the context tells the model that it was pruned.")


@dataclass(frozen=True, slots=True)
class Summarize:
    """How older parts of the log are summarized, between turns and by a worker."""

    enabled: bool = _knob("flag", True, "Whether summaries are written.")
    summarizer: str | None = _knob(
        "choice", None, "Summarizer that writes them. Null: the server's default.", choices=SUMMARIZERS
    )
    model: str | None = _knob("name", None, "Name of the model that writes them. Null: the summarizer's default.")
    style: str = _knob(
        "choice",
        "structured",
        "Form of the summaries: under headings (`structured`), the same with a heading for what is not started "
        "(`planned`), or a narrative (`narrative`).",
        choices=STYLES,
    )
    view: str = _knob(
        "choice",
        "all",
        "Which summaries are shown: `all`, the first and the last ones (`clip`), or only the latest, which then "
        "covers everything (`latest`).",
        choices=COVER_VIEWS,
    )
    scope: str = _knob(
        "choice",
        "level",
        "Which summaries are merged when there are too many: the oldest of one depth (`level`), all but the last ones "
        "(`oldest`), or those between the first and the last ones (`middle`).",
        choices=SCOPES,
    )
    chunk_tokens: int = _knob(
        "whole",
        20_000,
        "Size of the events that one summary covers, at most a quarter of the target.",
        unit="tokens",
        least=100,
    )
    chunk_events: int | None = _knob(
        "whole", None, "Number of events that one summary covers. Null: by `chunk_tokens`.", least=1
    )
    max_tokens: int = _knob(
        "whole",
        2_800,
        "Maximum size of a summary of events; a merged one may take more.",
        unit="tokens",
        least=50,
    )
    max_ratio: float | None = _knob(
        "share",
        None,
        "Maximum size of a summary as a share of the target. Null: a quarter if `view` is `latest`, else 5%.",
    )
    prefix_max_tokens: int = _knob(
        "whole", 400, "Maximum size of the part about the beginning of a split turn.", unit="tokens", least=50
    )
    clip_first: int = _knob("whole", 2, "Number of the first summaries that are shown if `view` is `clip`.")
    clip_last: int = _knob("whole", 2, "Number of the last summaries that are shown and not merged.", least=1)
    buffer: int = _knob("whole", 2, "Number of further summaries that may stand side by side before some are merged.")
    rebuild: bool = _knob(
        "flag", False, "Whether a merged summary is written from the events themselves instead of the summaries."
    )
    keep_ratio: float = _knob(
        "share", 0.3, "Share of the target that stays unsummarized, at most 16,000 tokens, if no cut is set."
    )
    role: str = _knob(
        "choice", "user", "Role of the messages that show summaries to the model.", choices=("user", "system")
    )
    on_fail: str = _knob(
        "choice",
        "extractive",
        "What happens if a summarizer fails for good: a summary is written without a model, and again later "
        "(`extractive`), or none is written (`unchanged`).",
        choices=("extractive", "unchanged"),
    )


@dataclass(frozen=True, slots=True)
class Economics:
    """When evictions that nothing forces are worth their price."""

    factor: float = _knob(
        "number",
        1.0,
        "Evictions are applied once carrying their content has cost this many times what rewriting the cache costs.",
        most=100,
    )
    least_tokens: int = _knob("whole", 1_000, "Size below which evictions are not worth a new epoch.", unit="tokens")
    on_cold: bool = _knob("flag", True, "Whether evictions are applied when the cache is cold anyway.")
    at_risk: float = _knob(
        "share",
        0.0,
        "Share of the bill for sending everything by which evictions may make a run dearer. 0: never dearer.",
        zero=True,
    )


@dataclass(frozen=True, slots=True)
class VisibilityRules:
    """What an agent may hide of its context, unless it insists."""

    hide: str = _knob(
        "choice",
        "economic",
        "What an agent may hide without `force`: what pays while the cache is warm (`economic`), what comes after the "
        "`pre_tail` cache breakpoint (`tail`), or anything (`any`).",
        choices=HIDE,
    )
    hide_tail_tokens_max: int | None = _knob(
        "whole", None, "Maximum size of what follows an event that may be hidden. Null: no limit.", unit="tokens"
    )


@dataclass(frozen=True, slots=True)
class CacheRules:
    """What the provider's cache does; what is not given is the model's own (the `cache` table)."""

    ttl_seconds: int | None = _knob(
        "whole", None, "Time that a cache entry lives after its last use. Null: the model's own.", unit="seconds"
    )
    minimum_tokens: int | None = _knob(
        "whole", None, "Size of the smallest prefix that is cached. Null: the model's own.", unit="tokens"
    )
    read_price: float | None = _knob(
        "number", None, "Price of a cached token, as a multiple of an input token's. Null: the model's own.", most=100
    )
    write_price: float | None = _knob(
        "number",
        None,
        "Price of writing a token to the cache, as a multiple of an input token's. Null: the model's own.",
        most=100,
    )
    lookback_blocks: int | None = _knob(
        "whole",
        None,
        "Number of content blocks that the provider looks back from a cache breakpoint for an entry, its own "
        "included. Null: the model's own.",
        least=1,
    )
    markers: int | None = _knob(
        "whole", None, "Maximum number of cache breakpoints in a request. Null: the model's own."
    )


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost, for the ledger; cached ones by `cache`'s prices of the input's."""

    input_per_million: float | None = _knob(
        "number",
        None,
        "Price of a million input tokens, for the ledger. Null: the ledger counts tokens only.",
        most=1e6,
    )
    output_per_million: float | None = _knob(
        "number", None, "Price of a million output tokens, for the ledger. Null: output is not priced.", most=1e6
    )
    currency: str = _knob("name", "USD", "Currency of the prices.")


@dataclass(frozen=True, slots=True)
class OverflowRules:
    """Which errors of a provider mean that the context was too long."""

    patterns: tuple[str, ...] = _knob(
        "names",
        (),
        "Names of pattern sets to apply in full, with the patterns that may match other errors as well. The safe "
        f"patterns of every set always apply. Known: {', '.join(SETS)}.",
    )


@dataclass(frozen=True, slots=True)
class Policy:
    """All knobs of a view."""

    window_tokens: int | None = _knob(
        "whole", None, "Context window of the model. Null: the model's own.", unit="tokens", least=1
    )
    reserve_tokens: int | None = _knob(
        "whole",
        None,
        "Part of the window left free for the answer. Null: a tenth of the window, at most 16,384.",
        unit="tokens",
    )
    injection_reserve_tokens: int | None = _knob(
        "whole",
        None,
        "Part of the window left free for injected content. Null: what a call's own injections take, at most an "
        "eighth of the window.",
        unit="tokens",
    )
    outside_tokens: int | None = _knob(
        "whole",
        None,
        "What the client sends in addition to each request, such as tools or a system prompt of its own, as the "
        "provider counts. Null: the session's value, else what reported usage suggests.",
        unit="tokens",
    )
    estimator: str | None = _knob(
        "choice", None, "Estimator that counts tokens. Null: the one that suits the model.", choices=ESTIMATORS
    )
    heuristic: str = _knob(
        "choice",
        "heuristic",
        "Estimator for models that OpenAI's tokenizers do not count, if `estimator` is null: `heuristic` suits the "
        "model (Claude's are scaled, others counted by kind of text), the others are rules of thumb.",
        choices=HEURISTICS,
    )
    trigger: Trigger = _knob(
        "group", Trigger, "When contexts are reduced with summaries before the target demands it.", shape=Trigger
    )
    evict: str = _knob(
        "choice",
        "economic",
        "When evictions are applied: when they pay off (`economic`), only when the budget forces them "
        "(`on_pressure`), also when the cache is cold (`on_cache_expiry`), or at every context (`every_assembly`).",
        choices=EVICT,
    )
    low_water: float = _knob(
        "share",
        0.7,
        "Share of the target or trigger down to which a context is reduced once it must be, so that its prefix then "
        "stays for many calls.",
    )
    soft_ratio: float = _knob("share", 0.8, "Share of the target from which an append reports soft pressure.")
    ttl_pruning: TtlPruning = _knob(
        "group", TtlPruning, "What is pruned when the provider's cache has gone cold.", shape=TtlPruning
    )
    retention: Retention = _knob("group", Retention, "Which tool results may be evicted.", shape=Retention)
    caps: Caps = _knob("group", Caps, "Limits for one kind of content.", shape=Caps)
    dialogue_window: DialogueWindow = _knob(
        "group", DialogueWindow, "How much of the conversation is shown at most.", shape=DialogueWindow
    )
    summarize: Summarize = _knob("group", Summarize, "How older parts of the log are summarized.", shape=Summarize)
    cut: Cut = _knob(
        "group",
        Cut,
        "What of the newest part is kept verbatim: it is summarized and dropped last. At most one size is given.",
        shape=Cut,
    )
    economics: Economics = _knob("group", Economics, "When evictions that nothing forces pay off.", shape=Economics)
    cache: CacheRules = _knob("group", CacheRules, "How the provider's cache works.", shape=CacheRules)
    prices: Prices = _knob("group", Prices, "What tokens cost, for the ledger.", shape=Prices)
    overflow: OverflowRules = _knob(
        "group", OverflowRules, "Which errors of a provider mean that the context was too long.", shape=OverflowRules
    )
    visibility: VisibilityRules = _knob("group", VisibilityRules, "What may be hidden.", shape=VisibilityRules)
    markers: str = _knob(
        "choice",
        "tail",
        "Where cache breakpoints are set: after the last call and at the tail (`tail`), after rounds and turns "
        "(`rounds`), after the system prompt only (`prefix`), or nowhere (`none`).",
        choices=MARKERS,
    )
    layers: tuple[str, ...] = _knob("names", LAYERS, f"Layers that are shown if they are set: {', '.join(LAYERS)}.")
    recall: bool = _knob(
        "flag",
        False,
        "Whether the agent has the recall tool although the log's tools do not include it: stubs then say how to "
        "recall the originals.",
    )
    authors: tuple[str, ...] | None = _knob(
        "names",
        None,
        "Authors whose events are shown, beside events without one; with a `!` before each, all but these. Null: all.",
    )
    types: tuple[str, ...] | None = _knob(
        "names",
        None,
        "Types of events that are shown; with a `!` before each, all but these. Null: all. A tool call and its result "
        f"go together. Known: {', '.join(KINDS)}.",
    )
    retain_calls_days: int | None = _knob(
        "whole",
        None,
        "Time for which records of calls are kept at least. Null: as long as the server keeps them.",
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
