"""Models that write summaries: their clients, by name, each with a circuit breaker and a limit on spending."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pydantic import BaseModel, Field, SecretStr

from app.runtime.wing import Wing

if TYPE_CHECKING:
    from app.providers import Summarizer

ANTHROPIC_MODEL: Final = "claude-haiku-5-5"
OPENAI_MODEL: Final = "gpt-5-mini"
"""The default models for summaries."""


class SummarizerSettings(BaseModel):
    """Settings of the models."""

    summarizer_model: str | None = Field(
        None,
        description="Name of the model that writes the summaries. Default: "
        f"`{ANTHROPIC_MODEL}` of `anthropic`, `{OPENAI_MODEL}` of `openai`.",
    )
    anthropic_api_key: SecretStr | None = Field(None, description="Key for the `anthropic` summarizer.")
    anthropic_base_url: str | None = Field(None, description="Address of Anthropic's API, if not the vendor's own.")
    openai_api_key: SecretStr | None = Field(None, description="Key for the `openai` summarizer.")
    openai_base_url: str | None = Field(
        None, description="Address of OpenAI's API, if not the vendor's own: any server that offers chat completions."
    )
    summarizer_tokens_per_hour: int = Field(
        5_000_000, ge=0, description="Input and output tokens that one worker may use per provider and hour."
    )


@contextmanager
def _start(settings: SummarizerSettings) -> Iterator[None]:
    """Import the vendors' clients that are used, and only those: each takes a second and 20 MB."""
    if settings.anthropic_api_key is not None or settings.anthropic_base_url is not None:
        import app.wings.summarizers.anthropic
    if settings.openai_api_key is not None or settings.openai_base_url is not None:
        import app.wings.summarizers.openai  # noqa: F401 - imported for all processes before they fork
    yield


def _summarizers(settings: SummarizerSettings) -> "Iterator[tuple[str, Summarizer]]":
    """Yield the summarizers for which the settings have a key or an address."""
    from app.wings.summarizers.guard import GuardedSummarizer

    most, model = settings.summarizer_tokens_per_hour, settings.summarizer_model
    key, url = settings.anthropic_api_key, settings.anthropic_base_url
    if key is not None or url is not None:
        from app.wings.summarizers.anthropic import Anthropic

        claude = Anthropic(model=model or ANTHROPIC_MODEL, api_key=_secret(key), base_url=url)
        yield "anthropic", GuardedSummarizer(claude, spend_tokens_max=most, clock=time.monotonic)
    key, url = settings.openai_api_key, settings.openai_base_url
    if key is not None or url is not None:
        from app.wings.summarizers.openai import OpenAI

        gpt = OpenAI(model=model or OPENAI_MODEL, api_key=_secret(key), base_url=url)
        yield "openai", GuardedSummarizer(gpt, spend_tokens_max=most, clock=time.monotonic)


def _secret(key: SecretStr | None) -> str:
    """Return the key, or a placeholder: self-hosted servers often need no key, but the clients require one."""
    return "none" if key is None else key.get_secret_value()


WING = Wing(settings=SummarizerSettings, start=_start, summarizers=_summarizers)
