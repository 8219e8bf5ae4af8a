"""Types of `policies`. Written by `make openapi` from the API's document."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict

from palimpsest._model import Model


class PolicyTrigger(TypedDict, total=False):
    """Thresholds at which contexts are reduced before the target demands it."""

    ratio: float | None
    """Share of the window above which a context is reduced. Null: no such trigger."""
    reserve: int | Literal["auto"] | None
    """Part of the window that must stay free, else a context is reduced; "auto" sets it by the size of the window.
    Null: no such trigger. In tokens.
    """
    tokens: int | None
    """Size above which a context is reduced. Null: no such trigger. In tokens."""


class PolicyTtlPruning(TypedDict, total=False):
    """Pruning of content when the provider's cache has gone cold."""

    ttl_seconds: int | None
    """Idle time after which contexts are pruned, usually the lifetime of the provider's cache. Null: never. In
    seconds.
    """
    buffer_seconds: int
    """Safety margin that is subtracted from `ttl_seconds`. In seconds."""
    keep_recent_turns: int
    """Number of the newest turns in which only media and the results of searches and fetches are pruned."""
    keep_recent_intact_turns: int
    """Number of the newest turns that are not pruned at all."""
    text_chars: int
    """Length above which the text of an event with a `path` is cut. In characters."""
    result_chars: int
    """Length above which tool results in plain text, and the texts of search hits, are cut. In characters."""
    field_chars: int
    """Length above which texts in the arguments of tool calls and in JSON results are cut. In characters."""
    base64_chars: int
    """Length above which base64 data is left out. In characters."""
    list_items: int
    """Number of items above which lists are cut."""
    dict_keys: int
    """Number of keys above which objects are cut."""
    images: int
    """Number of the newest images in recent turns that stay."""
    image_chars: int
    """Maximum length of the data of these images. In characters."""
    say: bool
    """Whether a line in the context tells the model that it was pruned."""


class PolicyRetentionTools(TypedDict, total=False):
    """`tools` of `PolicyRetention`."""

    keep_last: int | None
    """Number of the newest results of the tool that stay whole. Null: their number does not matter."""
    age_turns: int | None
    """Age in turns from which results may be evicted. Null: age does not matter."""
    min_tokens: int | None
    """Size below which results stay. Null: as `retention.min_tokens`. In tokens."""


class PolicyRetention(TypedDict, total=False):
    """Rules by which tool results may be evicted."""

    keep_last: int | None
    """Number of the newest tool results that stay whole. Null: their number does not matter."""
    per_tool: bool
    """Whether `keep_last` counts the results of each tool separately."""
    age_turns: int | None
    """Age in turns from which results may be evicted. Null: age does not matter."""
    superseded: bool
    """Whether a result may be evicted when a newer one of the same call or file repeats it."""
    working_set: int
    """Number of tool calls for which the newest content of a file (reads, writes, later edits) stays whole after
    the file was last used: half as many in the next turn, four times as many for the arguments of calls, fewer
    where cache writes cost more than those of a five-minute cache. Short results of searches and listings stay
    as long in the turn that made them. 0: nothing stays for this reason.
    """
    min_tokens: int
    """Size below which results stay, unless the budget forces them out. In tokens."""
    arguments: bool
    """Whether long arguments of old tool calls are shortened as well."""
    identifiers: float
    """Share of an evicted result that its stub may keep, as paths and identifiers that appear nowhere else."""
    dense: float
    """Share of paths and identifiers in a result above which it counts as a listing and stays, unless it is large
    or the budget forces it out.
    """
    tools: dict[str, PolicyRetentionTools]
    """Rules for single tools, by name, in place of the general ones."""
    never_evict: list[str]
    """Tools whose results are evicted only as a last resort."""


class PolicyCaps(TypedDict, total=False):
    """Limits for one kind of content."""

    tool_results: float | None
    """Maximum share of the target for tool results; beyond it the oldest become stubs. Null: no cap."""
    dialogue: float | None
    """Maximum share of the target for messages and tool calls; beyond it the oldest turns are summarized where a
    summary covers them, else dropped. Null: no cap.
    """
    summaries: float | None
    """Maximum share of the target for summaries; beyond it the longest are shortened. Null: no cap."""


class PolicyDialogueWindow(TypedDict, total=False):
    """Maximum of the conversation that is shown."""

    turns: int | None
    """Maximum number of turns shown. Null: no limit."""
    tokens: int | None
    """Maximum size of the turns shown, in whole turns. Null: no limit. In tokens."""


class PolicySummarize(TypedDict, total=False):
    """Summaries of older parts of the log."""

    enabled: bool
    """Whether summaries are written."""
    summarizer: Literal["extractive", "anthropic", "openai"] | None
    """Summarizer that writes them. Null: the server's default."""
    model: str | None
    """Name of the model that writes them. Null: the summarizer's default."""
    style: Literal["structured", "planned", "narrative"]
    """Form of the summaries: under headings (`structured`), the same with a heading for what is not started
    (`planned`), or a narrative (`narrative`).
    """
    view: Literal["all", "clip", "latest"]
    """Summaries that are shown: `all`, the first and the last ones (`clip`), or only the latest, which then covers
    everything (`latest`).
    """
    scope: Literal["level", "oldest", "middle"]
    """Summaries that are merged when there are too many: the oldest of one depth (`level`), all but the last ones
    (`oldest`), or those between the first and the last ones (`middle`).
    """
    chunk_tokens: int
    """Size of the events that one summary covers, at most a quarter of the target. In tokens."""
    chunk_events: int | None
    """Number of events that one summary covers. Null: by `chunk_tokens`."""
    max_tokens: int
    """Maximum size of a summary of events; a merged one may take more. In tokens."""
    max_ratio: float | None
    """Maximum size of a summary as a share of the target. Null: a quarter if `view` is `latest`, else 5%."""
    prefix_max_tokens: int
    """Maximum size of the part about the beginning of a split turn. In tokens."""
    clip_first: int
    """Number of the first summaries that are shown if `view` is `clip`."""
    clip_last: int
    """Number of the last summaries that are shown and not merged."""
    buffer: int
    """Number of further summaries that may be adjacent before some are merged."""
    rebuild: bool
    """Whether a merged summary is written from the events themselves instead of the summaries."""
    keep_ratio: float
    """Share of the target that stays unsummarized, at most 16,000 tokens, if no cut is set."""
    role: Literal["user", "system"]
    """Role of the messages that show summaries to the model."""
    on_fail: Literal["extractive", "unchanged"]
    """Fallback if a summarizer fails for good: a summary is written without a model, and again later
    (`extractive`), or none is written (`unchanged`).
    """


class PolicyCut(TypedDict, total=False):
    """The newest part, which is kept verbatim: it is summarized and dropped last. At most one size is given."""

    keep_tokens: int | Literal["auto"] | None
    """Size of the newest part to keep; "auto" sets it by the size of the window. Null: not set. In tokens."""
    keep_ratio: float | None
    """Size of the newest part to keep, as a share of the window. Null: not set."""
    keep_messages: int | None
    """Number of the newest events to keep. Null: not set."""
    keep_turns: int | None
    """Number of the newest turns to keep. Null: not set."""
    keep_recent_turns: int
    """Number of the newest turns that are kept in any case, if `keep_ratio` would keep less."""
    lean: Literal["back", "forward"]
    """Direction in which the cut point moves off a tool result: `back`, which keeps more, or `forward`."""
    split_turn: Literal["prefix", "protect_current", "advance"]
    """Treatment of the turn that the cut point falls into: it may be split (`prefix`), it may be split unless it
    is the running turn (`protect_current`), or the cut point moves to the next turn (`advance`). With each of
    them, a turn too large for any context is summarized in part.
    """


class PolicyEconomics(TypedDict, total=False):
    """Conditions under which evictions that nothing forces pay off."""

    factor: float
    """Evictions are applied once carrying their content has cost this many times what rewriting the cache costs."""
    least_tokens: int
    """Size below which evictions are not worth a new epoch. In tokens."""
    on_cold: bool
    """Whether evictions are applied when the cache is cold anyway."""
    at_risk: float
    """Share of the cost of sending everything by which evictions may raise the cost of a run. 0: by nothing."""
    once_tokens: int | None
    """Size from which results are shown once, if they can be recalled: after the last cache breakpoint, and as
    stubs from the next call on. Null: no result is. In tokens.
    """


class PolicyCache(TypedDict, total=False):
    """Properties of the provider's cache."""

    ttl_seconds: int | None
    """Time that a cache entry lives after its last use. Null: the model's own. In seconds."""
    minimum_tokens: int | None
    """Size of the smallest prefix that is cached. Null: the model's own. In tokens."""
    read_price: float | None
    """Price of a cached token, as a multiple of an input token's. Null: the model's own."""
    write_price: float | None
    """Price of writing a token to the cache, as a multiple of an input token's. Null: the model's own."""
    lookback_blocks: int | None
    """Number of content blocks that the provider looks back from a cache breakpoint for an entry, its own
    included. Null: the model's own.
    """
    markers: int | None
    """Maximum number of cache breakpoints in a request. Null: the model's own."""


class PolicyPrices(TypedDict, total=False):
    """Prices of tokens, for the ledger."""

    input_per_million: float | None
    """Price of a million input tokens, for the ledger. Null: the ledger counts tokens only."""
    output_per_million: float | None
    """Price of a million output tokens, for the ledger. Null: output is not priced."""
    currency: str
    """Currency of the prices."""


class PolicyOverflow(TypedDict, total=False):
    """Provider errors that mean that the context was too long."""

    patterns: list[str]
    """Names of pattern sets to apply in full, with the patterns that may match other errors as well. The safe
    patterns of every set always apply. Known: anthropic, openrouter, openai, gemini, bedrock, vllm, llama.cpp,
    others, threshold, timeline.
    """


class PolicyVisibility(TypedDict, total=False):
    """Limits on hiding events."""

    hide: Literal["economic", "tail", "any"]
    """Events that an agent may hide without `force`: those that pay while the cache is warm (`economic`), those
    after the `pre_tail` cache breakpoint (`tail`), or any (`any`).
    """
    hide_tail_tokens_max: int | None
    """Maximum size of what follows an event that may be hidden. Null: no limit. In tokens."""


class PolicyDocument(TypedDict, total=False):
    """Rules for what a view's contexts may leave out, and when. Omitted knobs have their defaults."""

    window_tokens: int | None
    """Context window of the model. Null: the model's own. In tokens."""
    reserve_tokens: int | None
    """Part of the window left free for the answer. Null: a tenth of the window, at most 16,384. In tokens."""
    injection_reserve_tokens: int | None
    """Part of the window left free for injected content. Null: what a call's own injections take, at most an
    eighth of the window. In tokens.
    """
    outside_tokens: int | None
    """Size of the tools, system prompt and the like that the client adds to each request, as the provider counts.
    Null: the session's value, else an estimate from reported usage. In tokens.
    """
    estimator: (
        Literal[
            "heuristic",
            "tiktoken:o200k_base",
            "tiktoken:cl100k_base",
            "claude-3:o200k_base",
            "claude-4.7:o200k_base",
            "ceil4",
            "bytes4+1",
            "chars4min1",
        ]
        | None
    )
    """Estimator that counts tokens for models whose own tokenizer is not known. Null: `heuristic`. That and rules
    of thumb (`ceil4` and the like) count no less than OpenAI's tokenizers.
    """
    heuristic: Literal["heuristic", "ceil4", "bytes4+1", "chars4min1"]
    """Estimator for models that OpenAI's tokenizers do not count, if `estimator` is null: `heuristic` suits the
    model (Claude's are scaled, others counted by kind of text). The others are rules of thumb, which count no
    less than the model's own tokenizer.
    """
    trigger: PolicyTrigger
    """Thresholds at which contexts are reduced before the target demands it."""
    evict: Literal["economic", "on_pressure", "on_cache_expiry", "every_assembly"]
    """When evictions are applied: when they pay off (`economic`), only when the budget forces them
    (`on_pressure`), also when the cache is cold (`on_cache_expiry`), or at every context (`every_assembly`).
    """
    low_water: float
    """Share of the target or trigger down to which a context is reduced once it must be, so that its prefix then
    stays for many calls.
    """
    soft_ratio: float
    """Share of the target from which an append reports soft pressure."""
    ttl_pruning: PolicyTtlPruning
    """Pruning of content when the provider's cache has gone cold."""
    retention: PolicyRetention
    """Rules by which tool results may be evicted."""
    caps: PolicyCaps
    """Limits for one kind of content."""
    dialogue_window: PolicyDialogueWindow
    """Maximum of the conversation that is shown."""
    summarize: PolicySummarize
    """Summaries of older parts of the log."""
    cut: PolicyCut
    """The newest part, which is kept verbatim: it is summarized and dropped last. At most one size is given."""
    economics: PolicyEconomics
    """Conditions under which evictions that nothing forces pay off."""
    cache: PolicyCache
    """Properties of the provider's cache."""
    prices: PolicyPrices
    """Prices of tokens, for the ledger."""
    overflow: PolicyOverflow
    """Provider errors that mean that the context was too long."""
    visibility: PolicyVisibility
    """Limits on hiding events."""
    markers: Literal["tail", "rounds", "prefix", "none"]
    """Places of the cache breakpoints: after the last call and at the tail (`tail`), after rounds and turns
    (`rounds`), after the system prompt only (`prefix`), or nowhere (`none`).
    """
    layers: list[str]
    """Layers that are shown if they are set: sources, announce."""
    recall: bool
    """Whether the agent has the recall tool although the log's tools do not include it: stubs then say how to
    recall the originals.
    """
    authors: list[str] | None
    """Authors whose events are shown, with events without one; with a `!` before each, all but these. Null: all."""
    types: list[str] | None
    """Types of events that are shown; with a `!` before each, all but these. Null: all. A tool call and its result
    go together. Known: user.message, assistant.message, tool.call, tool.result, system.message, agent.note,
    announce.
    """
    retain_calls_days: int | None
    """Time for which records of calls are kept at least. Null: as long as the server keeps them. In days."""


@dataclass(frozen=True, kw_only=True)
class PolicyOut(Model):
    """A stored version of a policy."""

    name: str
    """Name of the policy."""
    version: int
    """Version of the policy, counted from 1; presets have only version 1."""
    preset: bool
    """Whether it comes with the server and cannot be changed."""
    policy: PolicyDocument
    """Document as it was given; omitted knobs have their defaults."""
    created_at: datetime | None
    """Time at which the version was stored; null for presets."""


@dataclass(frozen=True, kw_only=True)
class PolicyPage(Model):
    """A page of policies."""

    items: list[PolicyOut]
    """Policies in their newest version: presets first, then others by name."""
    next_cursor: str | None
    """Cursor of the next page, to be passed as `cursor`; null on the last page."""


@dataclass(frozen=True, kw_only=True)
class PolicyRef(Model):
    """Reference to an immutable version of a policy."""

    name: str
    """Name of the policy; for a document given in a request, `inline:` and a hash of it."""
    version: int
    """Version of the policy, counted from 1."""
