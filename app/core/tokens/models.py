"""Models: their windows, and their providers' caches. Prices are in uncached input tokens."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from app.core import dataclass, replace
from app.core.errors import InvalidPolicy
from app.core.log.events import Json
from app.core.policy.groups import CacheRules
from app.core.policy.knobs import knob, read_values
from app.core.tokens.scales import AREA, ImageRule


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """A model's window and rules of counting.

    `encoding` is the tiktoken encoding to count with, None for the heuristic. `scale` names the scale from that
    encoding's tokens to the model's own (`core/tokens/scales`), None if the encoding is the model's.
    """

    window_tokens: int
    encoding: str | None
    image: ImageRule
    scale: str | None = None


_TILES: Final = ImageRule("tiles", base=85, tile=170)
_PATCHES_MINI: Final = ImageRule("patches", factor=1.62)

# Claude 3 to 4.6 share a tokenizer, Opus 4.7 and all later models another one (platform.claude.com, "Token counting").
# An unknown name is treated as a later model's, whose tokenizer makes more tokens.
_CLAUDE_3: Final = ModelProfile(200_000, "o200k_base", AREA, "claude-3")
_CLAUDE: Final = ModelProfile(200_000, "o200k_base", AREA, "claude-4.7")

UNKNOWN: Final = ModelProfile(128_000, None, AREA)

# The longest matching prefix applies.
_PROFILES: Final = {
    "gpt-5": ModelProfile(272_000, "o200k_base", ImageRule("tiles", base=70, tile=140)),
    "gpt-5-mini": ModelProfile(272_000, "o200k_base", _PATCHES_MINI),
    "gpt-5-nano": ModelProfile(272_000, "o200k_base", ImageRule("patches", factor=2.46)),
    "gpt-4.1": ModelProfile(1_047_576, "o200k_base", _TILES),
    "gpt-4.1-mini": ModelProfile(1_047_576, "o200k_base", _PATCHES_MINI),
    "gpt-4.1-nano": ModelProfile(1_047_576, "o200k_base", ImageRule("patches", factor=2.46)),
    "gpt-4o": ModelProfile(128_000, "o200k_base", _TILES),
    "gpt-4o-mini": ModelProfile(128_000, "o200k_base", ImageRule("tiles", base=2833, tile=5667)),
    "chatgpt-4o": ModelProfile(128_000, "o200k_base", _TILES),
    "gpt-oss": ModelProfile(131_072, "o200k_base", _TILES),
    "o1": ModelProfile(200_000, "o200k_base", ImageRule("tiles", base=75, tile=150)),
    "o3": ModelProfile(200_000, "o200k_base", ImageRule("tiles", base=75, tile=150)),
    "o4-mini": ModelProfile(200_000, "o200k_base", ImageRule("patches", factor=1.72)),
    "gpt-4-turbo": ModelProfile(128_000, "cl100k_base", _TILES),
    "gpt-4": ModelProfile(8_192, "cl100k_base", _TILES),
    "gpt-3.5": ModelProfile(16_385, "cl100k_base", _TILES),
    "claude": _CLAUDE,
    **dict.fromkeys(("claude-opus-4-7", "claude-opus-4-8", "claude-opus-4-9"), _CLAUDE),
    **dict.fromkeys(
        ("claude-2", "claude-instant", "claude-3", "claude-opus-4", "claude-sonnet-4", "claude-haiku-4"), _CLAUDE_3
    ),
    "gemini": ModelProfile(1_048_576, None, AREA),
}


def window_is_assumed(model: str | None, window_tokens: int) -> bool:
    """Return whether a window is the default for models whose own window is unknown."""
    return profile(model) is UNKNOWN and window_tokens == UNKNOWN.window_tokens


@lru_cache(maxsize=1_024)
def profile(model: str | None) -> ModelProfile:
    """Return the profile of a model name, with or without a router's prefix (see `model_name`)."""
    if not model:
        return UNKNOWN
    name = model_name(model)
    best = max((prefix for prefix in _PROFILES if name.startswith(prefix)), key=len, default=None)
    return _PROFILES[best] if best else UNKNOWN


@dataclass(frozen=True, slots=True)
class CacheProfile:
    """A provider's prompt cache. Prices are in input tokens. `lookback_blocks` is None if caching needs no markers.

    The bounds apply to the rows of a table (`parse_table`).
    """

    read_price: float = knob(0.1, most=100)
    write_price: float = knob(1.25, most=100)
    ttl_seconds: int = knob(300)
    minimum_tokens: int = knob(1_024)
    lookback_blocks: int | None = knob(20, least=1)
    markers: int = knob(4)
    step_tokens: int = knob(1, least=1)


ANTHROPIC: Final = CacheProfile()
ANTHROPIC_HOUR: Final = replace(ANTHROPIC, write_price=2.0, ttl_seconds=3_600)
OPENAI: Final = CacheProfile(write_price=1.0, ttl_seconds=600, lookback_blocks=None, markers=0, step_tokens=128)
OPENAI_PAID: Final = replace(OPENAI, write_price=1.25, ttl_seconds=1_800, markers=4)
UNKNOWN_CACHE: Final = OPENAI

_QUARTER: Final = replace(OPENAI, read_price=0.25)
_HALF: Final = replace(OPENAI, read_price=0.5)

# The longest matching prefix of the model's name applies.
TABLE: Final[Mapping[str, CacheProfile]] = {
    "claude": ANTHROPIC,
    "claude-3-haiku": replace(ANTHROPIC, minimum_tokens=2_048),
    "claude-3-5-haiku": replace(ANTHROPIC, minimum_tokens=2_048),
    "claude-haiku": replace(ANTHROPIC, minimum_tokens=4_096),
    "claude-haiku-5": replace(ANTHROPIC, minimum_tokens=512),
    "claude-sonnet-5-5": replace(ANTHROPIC, minimum_tokens=512, read_price=0.05),
    "claude-opus-4-5": replace(ANTHROPIC, minimum_tokens=4_096),
    "claude-opus-4-6": replace(ANTHROPIC, minimum_tokens=4_096),
    "claude-opus-4-7": replace(ANTHROPIC, minimum_tokens=2_048),
    "claude-opus-5": replace(ANTHROPIC, minimum_tokens=512),
    "claude-opus-5-5": replace(ANTHROPIC, minimum_tokens=512, read_price=0.05),
    "claude-fable": replace(ANTHROPIC, minimum_tokens=512),
    "claude-fable-5-1": replace(ANTHROPIC, minimum_tokens=512, read_price=0.025),
    "claude-mythos": replace(ANTHROPIC, minimum_tokens=512),
    "claude-mythos-5-1": replace(ANTHROPIC, minimum_tokens=512, read_price=0.025),
    "claude-mythos-preview": replace(ANTHROPIC, minimum_tokens=2_048),
    "gpt": OPENAI,
    "gpt-4o": _HALF,
    "chatgpt-4o": _HALF,
    "gpt-4.1": _QUARTER,
    "o1": _HALF,
    "o3": _QUARTER,
    "o3-mini": _HALF,
    "o4": _QUARTER,
    "gpt-5.6": OPENAI_PAID,
    "gpt-6": OPENAI_PAID,
    "gpt-6.1-sol": replace(OPENAI_PAID, read_price=0.05),
}


def model_name(model: str) -> str:
    """Return a model's own name in lower case, without a router's prefix (`openai/gpt-4o`, `us.anthropic.claude-…`) and
    with dashes for the dots that routers put into Claude's names (`anthropic/claude-opus-4.5`)."""
    name = model.lower().rsplit("/", 1)[-1]
    return name[name.index("claude") :].replace(".", "-") if "claude" in name else name


def profile_name(model: str | None, table: Mapping[str, CacheProfile] = TABLE) -> str | None:
    """Return the model's row of the table: the longest one that its name begins with; None if there is none."""
    return _longest_prefix(model_name(model) if model else "", tuple(table))


@lru_cache(maxsize=1_024)
def _longest_prefix(name: str, prefixes: tuple[str, ...]) -> str | None:
    return max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default=None)


def cache_profile(
    model: str | None,
    rules: CacheRules | None = None,
    table: Mapping[str, CacheProfile] = TABLE,
    otherwise: CacheProfile = UNKNOWN_CACHE,
) -> CacheProfile:
    """Return the profile of a model, `otherwise` if it is not in the table, with the figures of a policy's `rules`."""
    best = profile_name(model, table)
    profile = otherwise if best is None else table[best]
    given = () if rules is None else ((name, getattr(rules, name)) for name in rules.__slots__)
    overrides = {name: value for name, value in given if value is not None}
    return replace(profile, **overrides) if overrides else profile


def is_known_cache(
    model: str | None,
    rules: CacheRules | None = None,
    table: Mapping[str, CacheProfile] = TABLE,
    otherwise: CacheProfile = UNKNOWN_CACHE,
) -> bool:
    """Return whether `cache_profile` knows the cache: by the model, by the policy's `rules`, or by the provider."""
    stated = rules is not None and rules.ttl_seconds is not None
    return stated or profile_name(model, table) is not None or otherwise is not UNKNOWN_CACHE


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The part of a request that the provider's cache holds after its call, in input tokens.

    `expires_at` is in epoch seconds; None if nothing is held.
    """

    tokens: int = 0
    expires_at: float | None = None


def cached_prefix(profile: CacheProfile, tokens: int, outside: int, at: float) -> CachedPrefix:
    """Return the cached part of a request's first `tokens`, with `outside` tokens sent before them, called at `at`."""
    whole = (tokens + outside) // max(1, profile.step_tokens) * profile.step_tokens
    held = min(tokens, whole - outside)
    if tokens <= 0 or held <= 0 or whole < profile.minimum_tokens or not profile.ttl_seconds:
        return CachedPrefix()
    return CachedPrefix(held, at + profile.ttl_seconds)


def parse_table(document: Json) -> dict[str, CacheProfile]:
    """Return the built-in table with the rows of a document: `{"<model prefix>": {"ttl_seconds": 3600, ...}}`.

    A row applies to every model whose name begins with its prefix, a longer prefix over a shorter one; figures that it
    does not set are unchanged for each model. Raises InvalidPolicy naming the field.
    """
    if not isinstance(document, Mapping):
        raise InvalidPolicy("must be an object of model names", knob="cache_table")
    rows = {model_name(prefix): _row(prefix, row) for prefix, row in document.items()}
    table = dict(TABLE)
    for prefix in sorted(rows, key=len):
        table[prefix] = cache_profile(prefix, table=table)
        table |= {name: replace(known, **rows[prefix]) for name, known in table.items() if name.startswith(prefix)}
    for prefix in rows:
        for name, known in table.items():
            if not name.startswith(prefix) or known.read_price < known.write_price:
                continue
            if known.ttl_seconds or known.read_price > known.write_price:
                raise InvalidPolicy(f"{prefix}: a read of {name} must be cheaper than a write", knob="cache_table")
    return table


def _row(prefix: str, row: Json) -> Mapping[str, Any]:
    """Return a row if all of its figures are known and within bounds. Raises InvalidPolicy."""
    if not model_name(prefix):
        raise InvalidPolicy(f"{prefix!r} is the beginning of no model's name", knob="cache_table")
    try:
        return read_values(row, prefix, CacheProfile)
    except InvalidPolicy as error:
        raise InvalidPolicy(f"{error.fields['knob']}: {error.detail}", knob="cache_table") from None


@dataclass(frozen=True, slots=True)
class Bill:
    """Input tokens of one or more calls by how they are billed, and their price in input-token equivalents."""

    read_tokens: int = 0
    write_tokens: int = 0
    fresh_tokens: int = 0
    billed: float = 0.0

    def __add__(self, other: "Bill") -> "Bill":
        return Bill(
            self.read_tokens + other.read_tokens,
            self.write_tokens + other.write_tokens,
            self.fresh_tokens + other.fresh_tokens,
            self.billed + other.billed,
        )

    @property
    def tokens(self) -> int:
        """All input tokens."""
        return self.read_tokens + self.write_tokens + self.fresh_tokens

    @property
    def read_share(self) -> float:
        """The share of the input that was read from the cache; 0 for no input."""
        return self.read_tokens / self.tokens if self.tokens else 0.0


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
