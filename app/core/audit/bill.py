"""The price of a call's input, by how a provider bills it: read from its cache, written to it, or neither."""

from dataclasses import dataclass

from app.core.tokens.models import CacheProfile


@dataclass(frozen=True, slots=True)
class Bill:
    """Input tokens of one or more calls by how they are billed, and their price in input-token equivalents."""

    read: int = 0
    write: int = 0
    fresh: int = 0
    billed: float = 0.0

    def __add__(self, other: "Bill") -> "Bill":
        return Bill(
            self.read + other.read, self.write + other.write, self.fresh + other.fresh, self.billed + other.billed
        )

    @property
    def tokens(self) -> int:
        """All input tokens."""
        return self.read + self.write + self.fresh

    @property
    def read_share(self) -> float:
        """The share of the input that was read from the cache; 0 for no input."""
        return self.read / self.tokens if self.tokens else 0.0


def priced(rules: CacheProfile, read: int, write: int, fresh: int) -> Bill:
    """Return the bill of input tokens that were read from the cache, written to it, or neither."""
    return Bill(read, write, fresh, rules.read_price * read + rules.write_price * write + fresh)


def divide(rules: CacheProfile, total: int, found: int, marked: int) -> Bill:
    """Return the bill of `total` input tokens, the first `found` of which are cached.

    `marked` is the number of tokens up to the last cache marker that has the cacheable minimum before it. Automatic
    caches ignore it: they read whole steps of tokens and, if writes have a price, write whole steps.
    """
    if rules.lookback_blocks is not None:
        return priced(rules, found, max(0, marked - found), total - max(found, marked))
    read = found // rules.step_tokens * rules.step_tokens
    read = read if read >= rules.minimum_tokens else 0
    cached = total // rules.step_tokens * rules.step_tokens
    write = max(0, cached - read) if rules.write_price != 1 and cached >= rules.minimum_tokens else 0
    return priced(rules, read, write, total - read - write)
