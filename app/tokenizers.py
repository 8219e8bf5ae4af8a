"""Token counting: tiktoken's encodings from verified local files, without network access, and the counters by model."""

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, TypeVar

import structlog
import tiktoken
from tiktoken_ext.openai_public import ENCODING_CONSTRUCTORS  # type: ignore[import-untyped]  # it has no types

from app.core.log.appends import body_text
from app.core.log.event import Event
from app.core.log.events import BOOKKEEPING, Draft, EventType
from app.core.policy.policy import DEFAULT, Policy
from app.core.tokens.budget import Budget, own_budget
from app.core.tokens.counter import Counter, Estimator, estimator_for, estimator_named
from app.core.tokens.models import profile
from app.core.tokens.scales import Tokenizer
from app.vocabulary import FILES, fault

RUN_CHARS_MAX: Final = 1_000
"""Runs of only non-white-space (or only white space) that are longer are counted in pieces: merging the byte pairs of
one run takes more than linear time, and a megabyte of one letter would block the server."""
# Four control characters are white space to Python, but not to tiktoken.
_LONG_RUN: Final = re.compile(rf"[\S\x1c-\x1f]{{{RUN_CHARS_MAX + 1},}}|[^\S\x1c-\x1f]{{{RUN_CHARS_MAX + 1},}}")
_HALF: Final = RUN_CHARS_MAX // 2
# Every long run spans two neighbouring multiples of half the limit. Testing only at those positions rules out long runs
# in nearly every text; searching everywhere takes as long as counting the tokens.
_HALF_RUN: Final = re.compile(rf"[\S\x1c-\x1f]{{{_HALF + 1}}}|[^\S\x1c-\x1f]{{{_HALF + 1}}}")


PARTS_CACHED: Final = 4_096
"""Number of parts of texts whose counts are cached for each encoding, least recently used out."""
PART_CHARS: Final = 500
_PARAGRAPH: Final = re.compile(r"\n\n(?=[A-Za-z\[<#-])")
_WORD: Final = re.compile(r"[!-~](?= [A-Za-z])")


class TiktokenTokenizer:
    """Counts with one tiktoken encoding."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self._encoding = encoding
        self.in_parts = InParts(self)

    @property
    def name(self) -> str:
        """The encoding's name."""
        return self._encoding.name

    def count(self, text: str) -> int:
        """Return the tokens of `text`, special tokens counted as ordinary text; exact but for the cuts in long runs."""
        counted = [text] if len(text) <= RUN_CHARS_MAX else pieces(text)
        return sum(len(self._encoding.encode_ordinary(piece)) for piece in counted)


class InParts:
    """A tokenizer that caches the counts of a text's parts."""

    def __init__(self, tokenizer: TiktokenTokenizer) -> None:
        self.name = tokenizer.name
        self._count = lru_cache(PARTS_CACHED)(tokenizer.count)

    @property
    def in_parts(self) -> "InParts":
        """The tokenizer itself."""
        return self

    def count(self, text: str) -> int:
        """Return the tokens of `text`, the same as without parts."""
        return sum(map(self._count, parts(text)))


def parts(text: str) -> Iterator[str]:
    """Yield the parts of a text, which together have its tokens: paragraphs, or PART_CHARS and more of a long one.

    An encoding divides a text into words before it merges byte pairs. Between a paragraph's line breaks and a letter,
    and before a space that stands alone before a letter, a word always begins.
    """
    start = 0
    ends = [found.end() for found in _PARAGRAPH.finditer(text)]
    for end in (*ends, len(text)):
        while end - start > PART_CHARS and (word := _WORD.search(text, start + PART_CHARS - 1, end)):
            yield text[start : word.end()]
            start = word.end()
        yield text[start:end]
        start = end


def pieces(text: str) -> Iterator[str]:
    """Split `text` inside runs longer than RUN_CHARS_MAX, so that no piece has such a run."""
    start = 0
    if not any(_HALF_RUN.match(text, place) for place in range(0, len(text) - _HALF, _HALF)):
        yield text
        return
    for run in _LONG_RUN.finditer(text):
        for cut in range(run.start() + RUN_CHARS_MAX, run.end(), RUN_CHARS_MAX):
            yield text[start:cut]
            start = cut
    yield text[start:]


@cache
def load(folder: Path) -> Mapping[str, Tokenizer]:
    """Load the encodings whose vocabularies are intact in `folder`, once; log and omit the others."""
    log = structlog.get_logger()
    found: dict[str, Tokenizer] = {}
    for name, (file, sha256) in FILES.items():
        wrong = fault(folder / file, sha256)
        if wrong is None:
            found[name] = TiktokenTokenizer(_encoding(name, folder))
        else:
            log.warning(f"vocabulary {wrong}", encoding=name, folder=str(folder), fallback="heuristic")
    return found


def _encoding(name: str, folder: Path) -> tiktoken.Encoding:
    """Load the encoding from `folder`. tiktoken downloads nothing, because the file exists and passes its check.

    The encoding can count but not be pickled: its dictionary of the vocabulary, 41 of the 110 MB that both encodings
    would take, is emptied, because the counting code has its own copy.
    """
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    parts = ENCODING_CONSTRUCTORS[name]()
    encoding = tiktoken.Encoding(**parts)
    parts["mergeable_ranks"].clear()
    return encoding


OFF_LOOP_BYTES: Final = 32_768
"""Longer texts are counted and read in a thread: it would delay other requests by some milliseconds."""
KEPT_MAX: Final = 1_024

Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Counting:
    """Counters by model name, and the budgets derived from them."""

    tokenizers: Mapping[str, Tokenizer]
    _counters: dict[tuple[str, str | None], Counter] = field(default_factory=dict, init=False, repr=False)
    _budgets: dict[tuple[int, str | None], tuple[Policy, Budget]] = field(default_factory=dict, init=False, repr=False)

    def estimator(self, model: str | None) -> Estimator:
        """Return the estimator for a model."""
        return estimator_for(profile(model), self.tokenizers)

    def counter(self, model: str | None, policy: Policy = DEFAULT) -> Counter:
        """Return the counter for a model: its own tokenizer, or the policy's estimator if the model is unknown."""
        own = profile(model)
        unknown = policy.estimator if own.encoding is None else None
        return Counter(estimator_for(own, self.tokenizers, unknown or policy.heuristic), own.image)

    def session_counter(self, estimator: str, model: str | None) -> Counter:
        """Return the counter of a session's events; its estimator stays the same when the model changes."""
        known = self._counters.get((estimator, model))
        if known is None:
            if len(self._counters) >= KEPT_MAX:
                self._counters.clear()
            known = self._counters[estimator, model] = self._session_counter(estimator, model)
        return known

    def _session_counter(self, estimator: str, model: str | None) -> Counter:
        own = self.counter(model)
        if own.estimator.name == estimator:
            return own
        least = None if profile(model).encoding is None else own.estimator
        return Counter(estimator_named(estimator, self.tokenizers, least), own.image)

    def own_budget(self, policy: Policy, model: str | None) -> Budget:
        """Return the budget of a view that has no window yet. Raises CannotFit or InvalidPolicy."""
        key = (id(policy), model)
        known = self._budgets.get(key)
        if known is None or known[0] is not policy:
            if len(self._budgets) >= KEPT_MAX:
                self._budgets.clear()
            known = policy, own_budget(policy, model, self.counter(model, policy).estimator.margin)
            self._budgets[key] = known
        return known[1]

    async def prepare(self, drafts: Sequence[Draft], counter: Counter) -> tuple[list[str], list[int]]:
        """Return the bodies to store and the tokens of each event. Raises InvalidEvent."""
        bodies = [body_text(draft, index) for index, draft in enumerate(drafts)]
        return bodies, await off_loop(lambda: [counter.event(draft) for draft in drafts], sum(map(len, bodies)))

    async def recount(self, events: Sequence[Event], counter: Counter) -> tuple[Event, ...]:
        """Count the events again, for a model with another estimator than the session's."""
        return await off_loop(lambda: tuple(_recounted(one, counter) for one in events), bytes_of(events))


async def off_loop(work: Callable[[], Done], size: int) -> Done:
    """Do work on texts of `size` bytes, in a thread if they are long."""
    return await asyncio.to_thread(work) if size > OFF_LOOP_BYTES else work()


def bytes_of(events: Iterable[Event]) -> int:
    """Estimate the size of events by their tokens."""
    return 4 * sum(event.tokens for event in events)


def _recounted(event: Event, counter: Counter) -> Event:
    if event.body is None or event.type in BOOKKEEPING:
        return event
    body = event.body
    draft = Draft(
        type=EventType(event.type),
        content=body.get("content"),
        call_id=event.call_id,
        tool=event.tool,
        arguments=body.get("arguments"),
        native=body.get("native"),
    )
    return replace(event, tokens=counter.event(draft))
