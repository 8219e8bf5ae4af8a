"""The parts of a policy on the provider: its cache, its prices, and its errors for a context that is too long."""

from dataclasses import dataclass

from app.core.policy.knobs import knob as _knob
from app.core.policy.overflow import SETS


@dataclass(frozen=True, slots=True)
class CacheRules:
    """Corrections to the model's cache profile (`tokens/cache_profiles`)."""

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
    """Prices per million tokens, for the ledger; cached tokens cost the input price times those of `CacheRules`."""

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
    """The provider errors that mean that the context was too long."""

    patterns: tuple[str, ...] = _knob(
        "names",
        (),
        "Names of pattern sets to apply in full, with the patterns that may match other errors as well. The safe "
        f"patterns of every set always apply. Known: {', '.join(SETS)}.",
    )
