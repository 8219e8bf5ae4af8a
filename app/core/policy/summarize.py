"""Policy documents: the provider's cache, and summaries."""

from dataclasses import dataclass
from typing import Literal

from app.core.policy.knobs import knob as _knob
from app.core.policy.overflow import SETS


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
