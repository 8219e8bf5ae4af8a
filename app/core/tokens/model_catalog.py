"""Profiles of models by name: vendor, window, and rules for counting tokens and images.

Windows are input windows in tokens, as the vendors document them; a view or a request may set its own. Caches are in
`cache_profiles.py`.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from app.core.tokens.cache_profiles import model_name
from app.core.tokens.images import AREA, ImageRule

Vendor = Literal["openai", "anthropic", "other"]


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """A model's vendor, window and rules of counting.

    `encoding` is the tiktoken encoding to count with, None for the heuristic. `scale` names the scale from that
    encoding's tokens to the model's own (`core/tokens/scales`), None if the encoding is the model's.
    """

    vendor: Vendor
    window_tokens: int
    encoding: str | None
    image: ImageRule
    scale: str | None = None


_TILES: Final = ImageRule("tiles", base=85, tile=170)
_PATCHES_MINI: Final = ImageRule("patches", factor=1.62)

# Claude 3 to 4.6 share a tokenizer, Opus 4.7 and all later models another one (platform.claude.com, "Token counting").
# An unknown name is treated as a later model's, whose tokenizer makes more tokens.
_CLAUDE_3: Final = ModelProfile("anthropic", 200_000, "o200k_base", AREA, "claude-3")
_CLAUDE: Final = ModelProfile("anthropic", 200_000, "o200k_base", AREA, "claude-4.7")

UNKNOWN: Final = ModelProfile("other", 128_000, None, AREA)

# The longest matching prefix applies.
_PROFILES: Final = {
    "gpt-5": ModelProfile("openai", 272_000, "o200k_base", ImageRule("tiles", base=70, tile=140)),
    "gpt-5-mini": ModelProfile("openai", 272_000, "o200k_base", _PATCHES_MINI),
    "gpt-5-nano": ModelProfile("openai", 272_000, "o200k_base", ImageRule("patches", factor=2.46)),
    "gpt-4.1": ModelProfile("openai", 1_047_576, "o200k_base", _TILES),
    "gpt-4.1-mini": ModelProfile("openai", 1_047_576, "o200k_base", _PATCHES_MINI),
    "gpt-4.1-nano": ModelProfile("openai", 1_047_576, "o200k_base", ImageRule("patches", factor=2.46)),
    "gpt-4o": ModelProfile("openai", 128_000, "o200k_base", _TILES),
    "gpt-4o-mini": ModelProfile("openai", 128_000, "o200k_base", ImageRule("tiles", base=2833, tile=5667)),
    "chatgpt-4o": ModelProfile("openai", 128_000, "o200k_base", _TILES),
    "gpt-oss": ModelProfile("openai", 131_072, "o200k_base", _TILES),
    "o1": ModelProfile("openai", 200_000, "o200k_base", ImageRule("tiles", base=75, tile=150)),
    "o3": ModelProfile("openai", 200_000, "o200k_base", ImageRule("tiles", base=75, tile=150)),
    "o4-mini": ModelProfile("openai", 200_000, "o200k_base", ImageRule("patches", factor=1.72)),
    "gpt-4-turbo": ModelProfile("openai", 128_000, "cl100k_base", _TILES),
    "gpt-4": ModelProfile("openai", 8_192, "cl100k_base", _TILES),
    "gpt-3.5": ModelProfile("openai", 16_385, "cl100k_base", _TILES),
    "claude": _CLAUDE,
    **dict.fromkeys(("claude-opus-4-7", "claude-opus-4-8", "claude-opus-4-9"), _CLAUDE),
    **dict.fromkeys(
        ("claude-2", "claude-instant", "claude-3", "claude-opus-4", "claude-sonnet-4", "claude-haiku-4"), _CLAUDE_3
    ),
    "gemini": ModelProfile("other", 1_048_576, None, AREA),
}


def window_is_assumed(model: str | None, window_tokens: int) -> bool:
    """Return whether a window is the default for models whose own window is unknown."""
    return profile(model) is UNKNOWN and window_tokens == UNKNOWN.window_tokens


@lru_cache(maxsize=1_024)
def profile(model: str | None) -> ModelProfile:
    """Return the profile of a model name, with or without a router's prefix (see `cache_profiles.model_name`)."""
    if not model:
        return UNKNOWN
    name = model_name(model)
    best = max((prefix for prefix in _PROFILES if name.startswith(prefix)), key=len, default=None)
    return _PROFILES[best] if best else UNKNOWN
