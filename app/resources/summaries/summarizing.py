"""Writing one summary: by a model and checked by the quality gate, or without a model. Nothing here uses the database.

Files, constraints and identifiers are appended from the digest and never left to a model.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from app.core.log.events import Json
from app.core.memory.digest.record import Digest
from app.core.memory.extractive.summary import write_summary
from app.core.policy.policy import Policy
from app.providers.failures import ProviderError
from app.providers.summarizer import Summarizer
from app.resources.summaries.writing import SummaryInput, Writing, with_digest

LEARNED_WINDOW_SECONDS: Final = 3_600.0
"""Seconds for which a window learned from a model's refusals replaces that of the settings."""


class SummarizerUnavailable(Exception):
    """No summarizer is available now; to be retried after `delay` seconds."""

    def __init__(self, detail: str, delay: float) -> None:
        super().__init__(detail)
        self.detail = detail
        self.delay = delay


@dataclass(frozen=True, slots=True)
class WrittenSummary:
    """A summary as it was written; `text` is None if writing failed. `refused` are the texts that did not pass the
    quality gate, each with its `complaints`."""

    text: str | None
    digest: Digest
    summarizer: str
    model: str | None = None
    prompt_version: str | None = None
    usage: Mapping[str, Json] = field(default_factory=dict)
    degraded: bool = False
    complaints: tuple[str, ...] = ()
    refused: tuple["WrittenSummary", ...] = ()
    tokens_read: int = 0
    error: str | None = None


class Summarizing:
    """Summarizers by name: `write_summary` needs no model; the others are called through their guards.

    `window_tokens` is the most a model is given in one request, `timeout` its time limit in seconds, `attempts_max` the
    number of attempts before a run does without the model.
    """

    def __init__(
        self,
        summarizers: Mapping[str, Summarizer],
        prompts: Mapping[str, str],
        *,
        default: str = "extractive",
        window_tokens: int = 100_000,
        timeout: float = 120.0,
        attempts_max: int = 3,
    ) -> None:
        self._summarizers = summarizers
        self._prompts = prompts
        self._default = default
        self._window_tokens = window_tokens
        self._timeout = timeout
        self._learned_windows: dict[tuple[str, str | None], tuple[int, float]] = {}
        self.attempts_max = attempts_max

    async def aclose(self) -> None:
        """Close the connections to the models."""
        for summarizer in self._summarizers.values():
            await summarizer.aclose()

    def has_model(self, policy: Policy) -> bool:
        """Return whether an available model writes the summaries of a policy."""
        return (policy.summarize.summarizer or self._default) in self._summarizers

    async def write(
        self,
        task: SummaryInput,
        policy: Policy,
        *,
        without_model: bool = False,
        charge: Callable[[Summarizer], Summarizer] = lambda summarizer: summarizer,
    ) -> WrittenSummary:
        """Write the summary of a task; `charge` wraps the summarizer to charge an account.

        Raises SummarizerUnavailable if a model is unavailable now and may be available later. If it is not called
        because too much was spent, the summary is written without it.
        """
        name = policy.summarize.summarizer or self._default
        summarizer = self._summarizers.get(name)
        if summarizer is None or without_model:
            draft = await asyncio.to_thread(_extract, task)
            wanted = name != "extractive"
            return replace(draft, degraded=wanted, error=f"summarizer {name!r} was not called" if wanted else None)
        try:
            return await self._write_by_model(name, charge(summarizer), task, policy)
        except ProviderError as error:
            if error.retryable:
                raise SummarizerUnavailable(f"{name}: {error.detail}", error.retry_after or 0.0) from error
            return await self.substitute(task, policy, f"{name}: {error.detail}")

    async def substitute(self, task: SummaryInput, policy: Policy, error: str) -> WrittenSummary:
        """Return the substitute for a failed summarizer: a summary without a model, or none, as the policy says."""
        if policy.summarize.on_fail == "unchanged":
            return WrittenSummary(None, task.digest, "none", error=error)
        return replace(await asyncio.to_thread(_extract, task), degraded=True, error=error)

    async def _write_by_model(
        self, name: str, summarizer: Summarizer, task: SummaryInput, policy: Policy
    ) -> WrittenSummary:
        model = (name, policy.summarize.model)
        window, until = self._learned_windows.get(model, (self._window_tokens, math.inf))
        known = window if time.monotonic() < until else self._window_tokens
        writing = Writing(summarizer, self._prompts, task, policy, known, self._timeout)
        digest = await asyncio.to_thread(lambda: task.digest)
        answer, refused = await writing.write(digest)
        if writing.window_tokens < known:
            self._learned_windows[model] = (writing.window_tokens, time.monotonic() + LEARNED_WINDOW_SECONDS)
        about = WrittenSummary(
            None,
            digest,
            name,
            answer.model,
            writing.style.prompt,
            {"input_tokens": writing.input_tokens, "output_tokens": writing.output_tokens},
            tokens_read=writing.input_tokens,
        )
        about = replace(about, refused=tuple(replace(about, text=text, complaints=why) for text, why in refused))
        if len(refused) > 1:
            why = f"{name}: refused: {refused[-1][1][0]}"
            fallback = await self.substitute(task, policy, why)
            if fallback.text is None:
                return replace(about, error=why)
            return replace(fallback, refused=about.refused, tokens_read=about.tokens_read, usage=about.usage)
        return replace(about, text=with_digest(answer.text, digest, task))


def _extract(task: SummaryInput) -> WrittenSummary:
    digest = task.digest
    previous = "\n\n".join(source.text for source in task.sources) or (task.previous if task.digests else "")
    events = () if task.sources else task.events
    text = write_summary(events, task.split_turn_events, previous, digest, task.sizes.summary, task.counter, task.focus)
    return WrittenSummary(text, digest, "extractive", prompt_version="extractive.v1", tokens_read=task.tokens)
