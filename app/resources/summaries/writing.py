"""The input of a summary, and the model calls that write it, each response checked by the quality gate."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias, TypeVar

from app.core.compaction.gate import complaints
from app.core.compaction.next_span import Sizes
from app.core.compaction.prompt import (
    STYLES,
    TURN_START,
    Completion,
    Portion,
    Prompt,
    Remainder,
    Style,
    history_prompt,
    make_measure,
    merge_prompt,
    retry_prompt,
)
from app.core.compaction.transcript import Paragraph, paragraphs
from app.core.log.event import Event
from app.core.log.events import EventType
from app.core.memory.cover import Summary
from app.core.memory.digest import digest_of
from app.core.memory.digest.appendix import Appendix, prose_measure
from app.core.memory.digest.record import Digest, unite
from app.core.memory.digest.sentences import request_of
from app.core.memory.extractive import TURN_START_SEPARATOR, with_appendix
from app.core.policy.policy import Policy
from app.core.tokens.counter import Counter, TextKind
from app.providers import Kind, ProviderError, Summarizer

MODEL_SHARE: Final = 0.8
"""Share of a summary's tokens that a model may write, since it counts tokens differently."""
APPENDIX_SHARE_MIN: Final = 0.25
"""Share of a summary's tokens that the digest may take in any case, however much a model wrote."""
REPEAT_SHARE: Final = 0.1
"""Share of a model's window left free for the complaints about a first response."""
NAMED_SHARE: Final = 0.75
"""A limit that a provider states is believed if it is at most this share of the request it refused, by our count."""
NO_ROOM: Final[frozenset[Kind]] = frozenset({"spent", "open", "rate_limited"})
"""Errors that our own concurrent requests may cause."""
TEMPERATURES: Final[Mapping[str, float]] = {"narrative": 0.0}
"""Temperatures by style, if not the prompts' own."""


@dataclass(frozen=True, slots=True)
class SummaryInput:
    """The input of a summary: events, with those of a split turn in `turn_start_events`; or `sources` to be merged.

    `previous` is the text of the summary before the events. If `digests` are given, the new summary replaces that one;
    otherwise it is only shown to the model. `tokens` is the size of all input. `requests` are the user's messages of
    turns that are only partly in the events.
    """

    counter: Counter
    sizes: Sizes
    events: tuple[Event, ...] = ()
    turn_start_events: tuple[Event, ...] = ()
    previous: str = ""
    sources: tuple[Summary, ...] = ()
    digests: tuple[Digest, ...] = ()
    focus: str = ""
    tokens: int = 0
    requests: tuple[Event, ...] = ()

    @property
    def digest(self) -> Digest:
        """The digest of all input, united with the given ones."""
        own = (*self.events, *self.turn_start_events) if not self.sources else ()
        given = replacements(self.requests)
        texts = (request_of(given.get(event.seq, event.text)) for event in self.requests)
        requests = Digest(requests=tuple(text for text in texts if text))
        return unite((*self.digests, *([digest_of(own, replacements(own))] if own else ()), requests))


def replacements(events: Sequence[Event]) -> dict[int, str]:
    """Return the texts that authors gave to replace their old events, by seq; a summary is made from these.

    Those of calls are ignored: their tool and arguments are summarized, as they are shown.
    """
    given = {e.seq: (e.body or {}).get("replacement") for e in events if e.type is not EventType.TOOL_CALL}
    return {seq: text for seq, text in given.items() if isinstance(text, str) and text.strip()}


FindComplaints: TypeAlias = Callable[[Completion], tuple[str, ...]]
Refusals: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Texts that the quality gate refused, each with its complaints. Two of them mean that the summary has failed."""


@dataclass(eq=False)
class Writing:
    """The model calls of one summary. `window_tokens` is the most that one request may take, as far as is known."""

    _summarizer: Summarizer
    _prompts: Mapping[str, str]
    _task: SummaryInput
    _policy: Policy
    window_tokens: int
    _timeout: float
    input_tokens: int = 0
    output_tokens: int = 0
    _running_count: int = 0
    _ended_count: int = 0
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def style(self) -> Style:
        """The style of the summary."""
        return STYLES[self._policy.summarize.style]

    async def write(self, digest: Digest) -> tuple[Completion, Refusals]:
        """Return the model's last response and the refused ones. Raises ProviderError."""
        task, rules = self._task, self._policy.summarize
        if not task.events and not task.turn_start_events and not task.sources and task.previous:
            return Completion(task.previous, ""), ()
        max_tokens = max(50, int(min(task.sizes.summary, rules.max_tokens) * MODEL_SHARE))
        find_complaints = partial(self._complaints, digest=digest, max_tokens=max_tokens)
        if task.sources and not task.events:
            texts = [Paragraph("", source.text) for source in task.sources]
            form = partial(self._merge_form, max_tokens=max_tokens)
            remainder = self._remainder(texts, form, digest.constraints)
            return await self._summarize_pieces(remainder, "", find_complaints)
        history = self._history(digest, max_tokens, find_complaints)
        if not task.turn_start_events:
            return await history
        beginning = self._beginning(max(50, int(rules.prefix_max_tokens * MODEL_SHARE)))
        (answer, refused), (late, refused_late) = await _run_both(history, beginning)
        if len(refused) > 1:
            return answer, refused
        if len(refused_late) > 1:
            return late, refused_late
        text = answer.text.rstrip() + TURN_START_SEPARATOR + late.text.strip()
        return replace(answer, text=text), refused or refused_late

    async def _history(
        self, digest: Digest, max_tokens: int, find_complaints: FindComplaints
    ) -> tuple[Completion, Refusals]:
        """Summarize all events but those of a split turn."""
        task = self._task
        if not task.events:
            return Completion(task.previous or "No prior history.", ""), ()
        form = partial(self._history_form, max_tokens=max_tokens)
        remainder = self._remainder(_paragraphs(task.events), form, digest.constraints)
        return await self._summarize_pieces(remainder, task.previous, find_complaints)

    async def _beginning(self, max_tokens: int) -> tuple[Completion, Refusals]:
        """Summarize the beginning of a split turn; the summary of the history has the constraints of both."""
        task = self._task

        def find_complaints(answer: Completion) -> tuple[str, ...]:
            return complaints(
                answer,
                source_tokens=task.tokens,
                tokens=task.counter.estimator.count(answer.text, TextKind.PROSE),
                max_tokens=self._policy.summarize.prefix_max_tokens,
                sections=TURN_START.sections,
                constraints=[],
                untrusted=_untrusted(task.turn_start_events),
            )

        def form(portion: Portion) -> Prompt:
            text = "\n\n".join(portion.texts)
            return history_prompt(self._prompts, text, portion.previous, max_tokens, style=TURN_START, cumulative=True)

        remainder = self._remainder(_paragraphs(task.turn_start_events), form)
        return await self._summarize_pieces(remainder, "", find_complaints)

    def _history_form(self, portion: Portion, *, max_tokens: int) -> Prompt:
        return history_prompt(
            self._prompts,
            "\n\n".join(portion.texts),
            portion.previous,
            max_tokens,
            style=self.style,
            focus=self._task.focus,
            constraints=portion.constraints,
            cumulative=bool(self._task.digests) or portion.is_continuation,
        )

    def _merge_form(self, portion: Portion, *, max_tokens: int) -> Prompt:
        texts = [*([portion.previous] if portion.previous else ()), *portion.texts]
        return merge_prompt(self._prompts, texts, max_tokens, style=self.style, constraints=portion.constraints)

    def _remainder(
        self, parts: Sequence[Paragraph], form: Callable[[Portion], Prompt], constraints: Sequence[str] = ()
    ) -> Remainder:
        count = self._task.counter.estimator.count
        measure = make_measure(lambda text: count(text, TextKind.PROSE))
        begun = [one for one in _paragraphs(self._task.requests) if parts and one not in parts]
        return Remainder(parts, form, measure, constraints, tuple(begun))

    async def _summarize_pieces(
        self, remainder: Remainder, previous: str, find_complaints: FindComplaints
    ) -> tuple[Completion, Refusals]:
        """Summarize one piece after the other, each with the summary of those before it.

        A piece that the model refuses as too long is divided. Raises ProviderError when no smaller piece is possible.
        """
        failure = ProviderError("context_too_long", f"no request fits a window of {self.window_tokens} tokens")
        is_continuation = False
        while True:
            limit = math.ceil(self.window_tokens * (1 - REPEAT_SHARE))
            found = await asyncio.to_thread(remainder.take, previous, limit, is_continuation=is_continuation)
            if found is None:
                raise failure
            ask, rest = found
            try:
                answer, refused = await self._ask_checked(ask, find_complaints, remainder)
            except ProviderError as error:
                if error.kind != "context_too_long":
                    raise
                failure, half = error, int(remainder.halved_limit(ask) / (1 - REPEAT_SHARE))
                named = error.room if error.room and error.room <= remainder.size(ask) * NAMED_SHARE else half
                self.window_tokens = min(self.window_tokens, named)
                continue
            if len(refused) > 1 or not rest.paragraphs:
                return answer, refused
            remainder, previous, is_continuation = rest, answer.text, True

    async def _ask_checked(
        self, ask: Prompt, find_complaints: FindComplaints, remainder: Remainder
    ) -> tuple[Completion, Refusals]:
        """Return the response, a second one if the gate refuses the first; and all refused responses."""
        answer = await self._answer(ask)
        refused: Refusals = ()
        while found := find_complaints(answer):
            refused = (*refused, (answer.text, found))
            if len(refused) > 1:
                break
            room = self.window_tokens - remainder.size(ask)
            answer = await self._answer(retry_prompt(ask, answer, found, chars=max(0, room * 2)))
        return answer, refused

    def _complaints(self, answer: Completion, *, digest: Digest, max_tokens: int) -> tuple[str, ...]:
        task = self._task
        estimator = task.counter.estimator
        text = with_digest(answer.text, digest, task)
        return complaints(
            answer,
            source_tokens=task.tokens,
            tokens=estimator.count(answer.text, TextKind.PROSE),
            max_tokens=max(max_tokens, task.sizes.summary),
            sections=self.style.sections,
            constraints=[one for one in digest.constraints if one not in text],
            untrusted=_untrusted(task.events),
        )

    async def _answer(self, ask: Prompt) -> Completion:
        rules = self._policy.summarize
        ask = replace(ask, model=rules.model, temperature=TEMPERATURES.get(rules.style, ask.temperature))
        answer = await self._call_model(ask)
        self.input_tokens += answer.input_tokens or 0
        self.output_tokens += answer.output_tokens or 0
        return answer

    async def _call_model(self, ask: Prompt) -> Completion:
        """Call the summarizer. A refusal that another request of ours may have caused, by its reservation or because a
        provider takes one request at a time, is repeated when one that ran at the same time has ended."""
        while True:
            self._running_count += 1
            ended_before = self._ended_count
            try:
                return await self._summarizer.summarize(ask, timeout=self._timeout)
            except ProviderError as error:
                another_ended = self._ended_count > ended_before
                if error.kind not in NO_ROOM or (self._running_count == 1 and not another_ended):
                    raise
            finally:
                self._running_count -= 1
                self._ended_count += 1
                self._ended.set()
                self._ended = asyncio.Event()
            if not another_ended:
                await self._ended.wait()


_T = TypeVar("_T")


async def _run_both(first: Coroutine[None, None, _T], second: Coroutine[None, None, _T]) -> tuple[_T, _T]:
    """Run both concurrently; cancel the other and raise the first error if one fails."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = group.create_task(first), group.create_task(second)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return tasks[0].result(), tasks[1].result()


def _paragraphs(events: Sequence[Event]) -> list[Paragraph]:
    given = replacements(events)
    return paragraphs([(event, given.get(event.seq)) for event in events])


def _untrusted(events: Sequence[Event]) -> list[str]:
    return [event.text for event in events if event.call_seq is not None]


def with_digest(body: str, digest: Digest, task: SummaryInput) -> str:
    """Append the digest, which is never left to a model, to a summary, within the tokens that the task allows both."""
    least = int(task.sizes.summary * APPENDIX_SHARE_MIN)
    measure = prose_measure(task.counter)
    return with_appendix(body, Appendix(digest, measure), task.sizes.summary, measure, least)
