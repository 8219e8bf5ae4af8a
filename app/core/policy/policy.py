"""The policy of a view, validated and immutable, with a default for every knob; and the presets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from app.core.errors import InvalidPolicy
from app.core.log.events import LAYERS, Json
from app.core.policy import knobs
from app.core.policy.groups import (
    KINDS,
    CacheRules,
    Caps,
    Cut,
    DialogueWindow,
    Economics,
    OverflowRules,
    Prices,
    Retention,
    Summarize,
    Trigger,
    TtlPruning,
    ViewFilter,
    VisibilityRules,
    is_mixed,
)
from app.core.policy.knobs import knob as _knob
from app.core.policy.overflow import SETS

RESERVE_RATIO: Final = 0.1
RESERVE_TOKENS_MAX: Final = 16_384
INJECTION_SHARE: Final = 0.125
RETAIN_DAYS_MAX: Final = 36_500

HeuristicName = Literal["heuristic", "ceil4", "bytes4+1", "chars4min1"]
EstimatorName = Literal[
    "heuristic",
    "tiktoken:o200k_base",
    "tiktoken:cl100k_base",
    "claude-3:o200k_base",
    "claude-4.7:o200k_base",
    "ceil4",
    "bytes4+1",
    "chars4min1",
]


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of a view that an operator makes."""

    window_tokens: int | None = _knob(
        None, "Context window of the model. Null: the model's own.", unit="tokens", least=1
    )
    reserve_tokens: int | None = _knob(
        None, "Part of the window left free for the answer. Null: a tenth of the window, at most 16,384.", unit="tokens"
    )
    injection_reserve_tokens: int | None = _knob(
        None,
        "Part of the window left free for injected content. Null: what a call's own injections take, at most an "
        "eighth of the window.",
        unit="tokens",
    )
    outside_tokens: int | None = _knob(
        None,
        "Size of the tools, system prompt and the like that the client adds to each request, as the provider counts. "
        "Null: the session's value, else an estimate from reported usage.",
        unit="tokens",
    )
    estimator: EstimatorName | None = _knob(
        None,
        "Estimator that counts tokens for models whose own tokenizer is not known. Null: `heuristic`. That and rules "
        "of thumb (`ceil4` and the like) count no less than OpenAI's tokenizers.",
    )
    heuristic: HeuristicName = _knob(
        "heuristic",
        "Estimator for models that OpenAI's tokenizers do not count, if `estimator` is null: `heuristic` suits the "
        "model (Claude's are scaled, others counted by kind of text). The others are rules of thumb, which count no "
        "less than the model's own tokenizer.",
    )
    trigger: Trigger = _knob(Trigger, "Thresholds at which contexts are reduced before the target demands it.")
    evict: Literal["economic", "on_pressure", "on_cache_expiry", "every_assembly"] = _knob(
        "economic",
        "When evictions are applied: when they pay off (`economic`), only when the budget forces them "
        "(`on_pressure`), also when the cache is cold (`on_cache_expiry`), or at every context (`every_assembly`).",
    )
    low_water: float = _knob(
        0.7,
        "Share of the target or trigger down to which a context is reduced once it must be, so that its prefix then "
        "stays for many calls.",
    )
    soft_ratio: float = _knob(0.8, "Share of the target from which an append reports soft pressure.")
    ttl_pruning: TtlPruning = _knob(TtlPruning, "Pruning of content when the provider's cache has gone cold.")
    retention: Retention = _knob(Retention, "Rules by which tool results may be evicted.")
    caps: Caps = _knob(Caps, "Limits for one kind of content.")
    dialogue_window: DialogueWindow = _knob(DialogueWindow, "Maximum of the conversation that is shown.")
    summarize: Summarize = _knob(Summarize, "Summaries of older parts of the log.")
    cut: Cut = _knob(
        Cut, "The newest part, which is kept verbatim: it is summarized and dropped last. At most one size is given."
    )
    economics: Economics = _knob(Economics, "Conditions under which evictions that nothing forces pay off.")
    cache: CacheRules = _knob(CacheRules, "Properties of the provider's cache.")
    prices: Prices = _knob(Prices, "Prices of tokens, for the ledger.")
    overflow: OverflowRules = _knob(OverflowRules, "Provider errors that mean that the context was too long.")
    visibility: VisibilityRules = _knob(VisibilityRules, "Limits on hiding events.")
    markers: Literal["tail", "rounds", "prefix", "none"] = _knob(
        "tail",
        "Places of the cache breakpoints: after the last call and at the tail (`tail`), after rounds and turns "
        "(`rounds`), after the system prompt only (`prefix`), or nowhere (`none`).",
    )
    layers: tuple[str, ...] = _knob(LAYERS, f"Layers that are shown if they are set: {', '.join(LAYERS)}.")
    recall: bool = _knob(
        False,
        "Whether the agent has the recall tool although the log's tools do not include it: stubs then say how to "
        "recall the originals.",
    )
    authors: tuple[str, ...] | None = _knob(
        None,
        "Authors whose events are shown, with events without one; with a `!` before each, all but these. Null: all.",
    )
    types: tuple[str, ...] | None = _knob(
        None,
        "Types of events that are shown; with a `!` before each, all but these. Null: all. A tool call and its result "
        f"go together. Known: {', '.join(KINDS)}.",
    )
    retain_calls_days: int | None = _knob(
        None,
        "Time for which records of calls are kept at least. Null: as long as the server keeps them.",
        unit="days",
        least=1,
        most=RETAIN_DAYS_MAX,
    )

    @property
    def shows(self) -> ViewFilter:
        """The filter for the events of a view with this policy."""
        return ViewFilter(*(None if names is None else frozenset(names) for names in (self.authors, self.types)))

    def kept_days(self, server_days: int) -> int | None:
        """Return the days for which a call's record is kept: the longer of the policy's and server's; None: no limit.

        `server_days` is the server's setting, 0 for no limit.
        """
        return max(server_days, self.retain_calls_days or 0) if server_days else None


DEFAULT: Final = Policy()


def parse_policy(document: Json) -> Policy:
    """Parse a policy from its JSON document. Raises InvalidPolicy, which names the knob."""
    policy: Policy = knobs.read_group(document, "", Policy)
    _check_sense(policy)
    return policy


def _check_sense(policy: Policy) -> None:
    """Raise InvalidPolicy for knobs that contradict each other or hold unknown names."""
    if policy.window_tokens is not None:
        held = (policy.reserve_tokens or 0) + (policy.injection_reserve_tokens or 0) + (policy.outside_tokens or 0)
        if held >= policy.window_tokens:
            named = ("reserve_tokens", "injection_reserve_tokens", "outside_tokens")
            knob = max(named, key=lambda name: getattr(policy, name) or 0)
            raise InvalidPolicy(f"reserves of {held} tokens leave nothing of {policy.window_tokens}", knob=knob)
        for knob, value in (("cut.keep_tokens", policy.cut.keep_tokens), ("trigger.tokens", policy.trigger.tokens)):
            if isinstance(value, int) and value > policy.window_tokens - held:
                raise InvalidPolicy(f"{value} is more than the target of a window of {policy.window_tokens}", knob=knob)
    if len(sizes := policy.cut.sizes) > 1:
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
    if cache.read_price is not None and cache.write_price is not None:
        has_none = cache.ttl_seconds == 0 and cache.read_price == cache.write_price
        if cache.read_price >= cache.write_price and not has_none:
            raise InvalidPolicy("a read must be cheaper than a write", knob="cache.read_price")


def _check_shows(policy: Policy) -> None:
    for knob, names in (("authors", policy.authors or ()), ("types", policy.types or ())):
        if is_mixed(names):
            raise InvalidPolicy(f"either the {knob} that are shown or, each with a `!`, those that are not", knob=knob)
    for name in policy.types or ():
        if name.removeprefix("!") not in KINDS:
            raise InvalidPolicy(f"no type that can be left out is named {name!r}", knob="types")


def json_schema() -> dict[str, Json]:
    """Return the JSON Schema of a policy document: each knob with its sentence, its unit and its default."""
    return knobs.json_schema(Policy)


_NO_RETENTION: Final[Mapping[str, object]] = {
    "keep_last": None,
    "identifiers": 0,
    "arguments": False,
    "superseded": False,
    "working_set": 0,
}
"""Rules of presets that protect no result."""
DOCUMENTS: Final[Mapping[str, Mapping[str, object]]] = {
    "default": {},
    # For agents that run unattended and can recall: large results are shown once.
    "unattended": {"economics": {"once_tokens": 500}},
    # S0 and S1: a timeline, compacted at nine tenths of the window, pruned when the cache has gone cold.
    "timeline": {
        "trigger": {"ratio": 0.9},
        "reserve_tokens": 0,
        "estimator": "tiktoken:cl100k_base",
        "evict": "on_pressure",
        "retention": _NO_RETENTION,
        "ttl_pruning": {"ttl_seconds": 300},
        "cut": {"keep_ratio": 0.7, "keep_recent_turns": 6, "lean": "forward", "split_turn": "prefix"},
        "summarize": {
            "view": "latest",
            "style": "planned",
            "max_tokens": 800,
            "prefix_max_tokens": 400,
            "on_fail": "unchanged",
        },
        "overflow": {"patterns": ["timeline"]},
        "visibility": {"hide": "tail", "hide_tail_tokens_max": 2_000},
        "markers": "rounds",
    },
    # S2: free reducers at every assembly, then the window; OpenAI's models are counted by their tokenizer.
    "pipeline": {
        "heuristic": "bytes4+1",
        "evict": "every_assembly",
        "retention": {
            "keep_last": None,
            "age_turns": 6,
            "min_tokens": 0,
            "identifiers": 0,
            "dense": 1,
            "arguments": False,
            "superseded": False,
            "working_set": 0,
        },
        "dialogue_window": {"turns": 40},
        "cut": {"keep_turns": 2, "split_turn": "advance"},
        "summarize": {"view": "latest", "role": "system", "on_fail": "unchanged"},
        "markers": "prefix",
    },
    # S3: batches of the oldest messages at eight tenths of the window.
    "clip": {
        "trigger": {"ratio": 0.8},
        "reserve_tokens": 0,
        "estimator": "ceil4",
        "evict": "on_pressure",
        "retention": _NO_RETENTION,
        "cut": {"keep_messages": 5, "split_turn": "prefix"},
        "summarize": {
            "view": "clip",
            "scope": "oldest",
            "chunk_events": 20,
            "max_tokens": 1024,
            "style": "narrative",
            "role": "system",
            "on_fail": "unchanged",
        },
    },
    # S4: a reserve, and a kept part sized by the window.
    "threshold": {
        "trigger": {"reserve": "auto"},
        "reserve_tokens": 0,
        "estimator": "chars4min1",
        "evict": "on_pressure",
        "retention": _NO_RETENTION,
        "cut": {"keep_tokens": "auto", "split_turn": "prefix"},
        "summarize": {"view": "latest", "max_tokens": 13_107, "on_fail": "unchanged"},
        "overflow": {"patterns": ["threshold"]},
    },
}

PRESETS: Final[Mapping[str, Policy]] = {name: parse_policy(document) for name, document in DOCUMENTS.items()}
