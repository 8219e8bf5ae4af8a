"""The groups of knobs of a policy: rules of eviction, retention and views; cache, prices, overflow and summaries."""

from collections.abc import Collection, Mapping
from typing import Final, Literal

from app.core import dataclass
from app.core.log.events import BOOKKEEPING, PREFIX, TOOL_USE, EventType
from app.core.policy.knobs import knob as _knob
from app.core.policy.overflow import SETS

KINDS: Final = tuple(kind.value for kind in EventType if kind not in BOOKKEEPING and kind not in PREFIX)
"""The types that a view may leave out. System prompts and tools are always shown."""


@dataclass(frozen=True, slots=True)
class ViewFilter:
    """The `authors` and `types` of the events that a view shows, None for all; names with a `!` are excluded."""

    authors: frozenset[str] | None = None
    types: frozenset[str] | None = None

    def leaves_out(self, kind: EventType, author: str | None) -> bool:
        """Return whether an event is left out by its author or type; one without an author, by its type only."""
        return (author is not None and _left_out(self.authors, author)) or self.leaves_out_type(kind)

    def leaves_out_type(self, kind: EventType) -> bool:
        """Return whether events of a type are left out. Tool calls and results go together, to keep pairs whole."""
        kinds = TOOL_USE if kind in TOOL_USE else () if kind in PREFIX else (kind,)
        return any(_left_out(self.types, name) for name in kinds)


SHOW_ALL: Final = ViewFilter()


def is_mixed(names: Collection[str]) -> bool:
    """Return whether some of the names have a `!` and some do not."""
    return _excludes(names) and not all(name.startswith("!") for name in names)


def _left_out(names: Collection[str] | None, name: str) -> bool:
    if names is None:
        return False
    return f"!{name}" in names if _excludes(names) else name not in names


def _excludes(names: Collection[str]) -> bool:
    return any(name.startswith("!") for name in names)


@dataclass(frozen=True, slots=True)
class ToolRule:
    """Eviction rules for the results of one tool, in place of the general rules."""

    keep_last: int | None = _knob(
        None, "Number of the newest results of the tool that stay whole. Null: their number does not matter."
    )
    age_turns: int | None = _knob(
        None, "Age in turns from which results may be evicted. Null: age does not matter.", least=1
    )
    min_tokens: int | None = _knob(
        None, "Size below which results stay. Null: as `retention.min_tokens`.", unit="tokens"
    )


@dataclass(frozen=True, slots=True)
class Retention:
    """The rules by which tool results are shown as stubs."""

    keep_last: int | None = _knob(
        2, "Number of the newest tool results that stay whole. Null: their number does not matter."
    )
    per_tool: bool = _knob(False, "Whether `keep_last` counts the results of each tool separately.")
    age_turns: int | None = _knob(
        None, "Age in turns from which results may be evicted. Null: age does not matter.", least=1
    )
    superseded: bool = _knob(
        True, "Whether a result may be evicted when a newer one of the same call or file repeats it."
    )
    working_set: int = _knob(
        16,
        "Number of tool calls for which the newest content of a file (reads, writes, later edits) stays whole after "
        "the file was last used: half as many in the next turn, four times as many for the arguments of calls, fewer "
        "where cache writes cost more than those of a five-minute cache. Short results of searches and listings stay "
        "as long in the turn that made them. 0: nothing stays for this reason.",
        most=1000,
    )
    min_tokens: int = _knob(300, "Size below which results stay, unless the budget forces them out.", unit="tokens")
    arguments: bool = _knob(True, "Whether long arguments of old tool calls are shortened as well.")
    identifiers: float = _knob(
        0.1,
        "Share of an evicted result that its stub may keep, as paths and identifiers that appear nowhere else.",
        zero=True,
    )
    dense: float = _knob(
        0.5,
        "Share of paths and identifiers in a result above which it counts as a listing and stays, unless it is large "
        "or the budget forces it out.",
    )
    tools: Mapping[str, ToolRule] = _knob(dict, "Rules for single tools, by name, in place of the general ones.")
    never_evict: tuple[str, ...] = _knob((), "Tools whose results are evicted only as a last resort.")

    def rule(self, tool: str | None) -> ToolRule | None:
        """Return the rule for a tool; None if its results always stay."""
        if tool in self.never_evict:
            return None
        own = self.tools.get(tool or "")
        if own is None:
            return ToolRule(self.keep_last, self.age_turns, self.min_tokens)
        return own if own.min_tokens is not None else ToolRule(own.keep_last, own.age_turns, self.min_tokens)

    def rules(self) -> tuple[ToolRule, ...]:
        """Return the general rule and those of single tools."""
        return (ToolRule(self.keep_last, self.age_turns, self.min_tokens), *self.tools.values())


@dataclass(frozen=True, slots=True)
class DialogueWindow:
    """The maximum of the conversation that is shown, in whole turns, the newest first."""

    turns: int | None = _knob(None, "Maximum number of turns shown. Null: no limit.", least=1)
    tokens: int | None = _knob(
        None, "Maximum size of the turns shown, in whole turns. Null: no limit.", unit="tokens", least=1
    )


@dataclass(frozen=True, slots=True)
class Caps:
    """The largest share of the target for each kind of content."""

    tool_results: float | None = _knob(
        None, "Maximum share of the target for tool results; beyond it the oldest become stubs. Null: no cap."
    )
    dialogue: float | None = _knob(
        None,
        "Maximum share of the target for messages and tool calls; beyond it the oldest turns are summarized where a "
        "summary covers them, else dropped. Null: no cap.",
    )
    summaries: float | None = _knob(
        None, "Maximum share of the target for summaries; beyond it the longest are shortened. Null: no cap."
    )


@dataclass(frozen=True, slots=True)
class Trigger:
    """Thresholds at which a context is reduced, in addition to its target."""

    ratio: float | None = _knob(None, "Share of the window above which a context is reduced. Null: no such trigger.")
    reserve: str | int | None = _knob(
        None,
        'Part of the window that must stay free, else a context is reduced; "auto" sets it by the size of the window. '
        "Null: no such trigger.",
        unit="tokens",
    )
    tokens: int | None = _knob(
        None, "Size above which a context is reduced. Null: no such trigger.", unit="tokens", least=1
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut point of the log if its older part must be left out; at most one of the four sizes is given."""

    keep_tokens: str | int | None = _knob(
        None, 'Size of the newest part to keep; "auto" sets it by the size of the window. Null: not set.', unit="tokens"
    )
    keep_ratio: float | None = _knob(None, "Size of the newest part to keep, as a share of the window. Null: not set.")
    keep_messages: int | None = _knob(None, "Number of the newest events to keep. Null: not set.", least=1)
    keep_turns: int | None = _knob(None, "Number of the newest turns to keep. Null: not set.", least=1)
    keep_recent_turns: int = _knob(
        0, "Number of the newest turns that are kept in any case, if `keep_ratio` would keep less."
    )
    lean: Literal["back", "forward"] = _knob(
        "back", "Direction in which the cut point moves off a tool result: `back`, which keeps more, or `forward`."
    )
    split_turn: Literal["prefix", "protect_current", "advance"] = _knob(
        "protect_current",
        "Treatment of the turn that the cut point falls into: it may be split (`prefix`), it may be split unless "
        "it is the running turn (`protect_current`), or the cut point moves to the next turn (`advance`). "
        "With each of them, a turn too large for any context is summarized in part.",
    )

    @property
    def sizes(self) -> list[str]:
        """The names of the sizes that are given."""
        names = ("keep_tokens", "keep_ratio", "keep_messages", "keep_turns")
        return [name for name in names if getattr(self, name) is not None]


@dataclass(frozen=True, slots=True)
class TtlPruning:
    """Pruning after the session has been idle until the provider's cache is cold."""

    ttl_seconds: int | None = _knob(
        None,
        "Idle time after which contexts are pruned, usually the lifetime of the provider's cache. Null: never.",
        unit="seconds",
    )
    buffer_seconds: int = _knob(10, "Safety margin that is subtracted from `ttl_seconds`.", unit="seconds")
    keep_recent_turns: int = _knob(
        10, "Number of the newest turns in which only media and the results of searches and fetches are pruned."
    )
    keep_recent_intact_turns: int = _knob(2, "Number of the newest turns that are not pruned at all.")
    text_chars: int = _knob(4000, "Length above which the text of an event with a `path` is cut.", unit="characters")
    result_chars: int = _knob(
        400, "Length above which tool results in plain text, and the texts of search hits, are cut.", unit="characters"
    )
    field_chars: int = _knob(
        1000,
        "Length above which texts in the arguments of tool calls and in JSON results are cut.",
        unit="characters",
        least=1,
    )
    base64_chars: int = _knob(4000, "Length above which base64 data is left out.", unit="characters")
    list_items: int = _knob(50, "Number of items above which lists are cut.")
    dict_keys: int = _knob(80, "Number of keys above which objects are cut.")
    images: int = _knob(2, "Number of the newest images in recent turns that stay.")
    image_chars: int = _knob(1_000_000, "Maximum length of the data of these images.", unit="characters")
    say: bool = _knob(True, "Whether a line in the context tells the model that it was pruned.")


@dataclass(frozen=True, slots=True)
class Economics:
    """The conditions under which evictions that the budget does not demand are worth their price."""

    factor: float = _knob(
        1.0,
        "Evictions are applied once carrying their content has cost this many times what rewriting the cache costs.",
        most=100,
    )
    least_tokens: int = _knob(1_000, "Size below which evictions are not worth a new epoch.", unit="tokens")
    on_cold: bool = _knob(True, "Whether evictions are applied when the cache is cold anyway.")
    at_risk: float = _knob(
        0.03,
        "Share of the cost of sending everything by which evictions may raise the cost of a run. 0: by nothing.",
        zero=True,
    )
    once_tokens: int | None = _knob(
        None,
        "Size from which results are shown once, if they can be recalled: after the last cache breakpoint, and as "
        "stubs from the next call on. Null: no result is.",
        unit="tokens",
        least=1,
    )


@dataclass(frozen=True, slots=True)
class VisibilityRules:
    """Limits on hiding parts of a context without `force`."""

    hide: Literal["economic", "tail", "any"] = _knob(
        "economic",
        "Events that an agent may hide without `force`: those that pay while the cache is warm (`economic`), those "
        "after the `pre_tail` cache breakpoint (`tail`), or any (`any`).",
    )
    hide_tail_tokens_max: int | None = _knob(
        None, "Maximum size of what follows an event that may be hidden. Null: no limit.", unit="tokens"
    )


@dataclass(frozen=True, slots=True)
class CacheRules:
    """Corrections to the model's cache profile (`core/tokens/models.TABLE`)."""

    ttl_seconds: int | None = _knob(
        None, "Time that a cache entry lives after its last use. Null: the model's own.", unit="seconds"
    )
    minimum_tokens: int | None = _knob(
        None, "Size of the smallest prefix that is cached. Null: the model's own.", unit="tokens"
    )
    read_price: float | None = _knob(
        None, "Price of a cached token, as a multiple of an input token's. Null: the model's own.", most=100
    )
    write_price: float | None = _knob(
        None,
        "Price of writing a token to the cache, as a multiple of an input token's. Null: the model's own.",
        most=100,
    )
    lookback_blocks: int | None = _knob(
        None,
        "Number of content blocks that the provider looks back from a cache breakpoint for an entry, its own "
        "included. Null: the model's own.",
        least=1,
    )
    markers: int | None = _knob(None, "Maximum number of cache breakpoints in a request. Null: the model's own.")


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices per million tokens, for the ledger; cached tokens cost the input price times those of `CacheRules`."""

    input_per_million: float | None = _knob(
        None, "Price of a million input tokens, for the ledger. Null: the ledger counts tokens only.", most=1e6
    )
    output_per_million: float | None = _knob(
        None, "Price of a million output tokens, for the ledger. Null: output is not priced.", most=1e6
    )
    currency: str = _knob("USD", "Currency of the prices.")


@dataclass(frozen=True, slots=True)
class OverflowRules:
    """The provider errors that mean that the context was too long."""

    patterns: tuple[str, ...] = _knob(
        (),
        "Names of pattern sets to apply in full, with the patterns that may match other errors as well. The safe "
        f"patterns of every set always apply. Known: {', '.join(SETS)}.",
    )


@dataclass(frozen=True, slots=True)
class Summarize:
    """The way in which older parts of the log are summarized, between turns and by a worker."""

    enabled: bool = _knob(True, "Whether summaries are written.")
    summarizer: Literal["extractive", "anthropic", "openai"] | None = _knob(
        None, "Summarizer that writes them. Null: the server's default."
    )
    model: str | None = _knob(None, "Name of the model that writes them. Null: the summarizer's default.")
    style: Literal["structured", "planned", "narrative"] = _knob(
        "structured",
        "Form of the summaries: under headings (`structured`), the same with a heading for what is not started "
        "(`planned`), or a narrative (`narrative`).",
    )
    view: Literal["all", "clip", "latest"] = _knob(
        "all",
        "Summaries that are shown: `all`, the first and the last ones (`clip`), or only the latest, which then "
        "covers everything (`latest`).",
    )
    scope: Literal["level", "oldest", "middle"] = _knob(
        "level",
        "Summaries that are merged when there are too many: the oldest of one depth (`level`), all but the last ones "
        "(`oldest`), or those between the first and the last ones (`middle`).",
    )
    chunk_tokens: int = _knob(
        20_000, "Size of the events that one summary covers, at most a quarter of the target.", unit="tokens", least=100
    )
    chunk_events: int | None = _knob(
        None, "Number of events that one summary covers. Null: by `chunk_tokens`.", least=1
    )
    max_tokens: int = _knob(
        2_800, "Maximum size of a summary of events; a merged one may take more.", unit="tokens", least=50
    )
    max_ratio: float | None = _knob(
        None, "Maximum size of a summary as a share of the target. Null: a quarter if `view` is `latest`, else 5%."
    )
    prefix_max_tokens: int = _knob(
        400, "Maximum size of the part about the beginning of a split turn.", unit="tokens", least=50
    )
    clip_first: int = _knob(2, "Number of the first summaries that are shown if `view` is `clip`.")
    clip_last: int = _knob(2, "Number of the last summaries that are shown and not merged.", least=1)
    buffer: int = _knob(2, "Number of further summaries that may be adjacent before some are merged.")
    rebuild: bool = _knob(
        False, "Whether a merged summary is written from the events themselves instead of the summaries."
    )
    keep_ratio: float = _knob(
        0.3, "Share of the target that stays unsummarized, at most 16,000 tokens, if no cut is set."
    )
    role: Literal["user", "system"] = _knob("user", "Role of the messages that show summaries to the model.")
    on_fail: Literal["extractive", "unchanged"] = _knob(
        "extractive",
        "Fallback if a summarizer fails for good: a summary is written without a model, and again later "
        "(`extractive`), or none is written (`unchanged`).",
    )
