"""The request for a model's summary, in pieces where the span exceeds the model's window."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from app.core.compaction.transcript import Paragraph, cut, inert

PROMPT_VERSION: Final = "v1"
"""The version of the texts in `app/prompts`, except that of TURN_START."""
WORDS_PER_TOKEN: Final = 0.5
"""For text full of paths and identifiers; prose has more words per token."""
CARRY_OVER: Final = (
    "It takes the place of the previous summary: carry over all of that which still holds, brought up to date."
)
DO_NOT_REPEAT: Final = (
    "The previous summary stays beside it: do not repeat what stands there, say what is new and what has changed."
)
FOCUS_CHARS_MAX: Final = 2_000
REJECTED_CHARS_PER_TOKEN: Final = 6
"""The maximum size of a rejected answer that is sent back, in characters for each token that the answer may take."""

_WRAPPED: Final = re.compile(r"\A```[a-z]{0,12}\n(.*)\n```\Z", re.DOTALL)
_TAGGED: Final = re.compile(r"\A<summary>(.*)</summary>\Z", re.DOTALL)
_REASONED: Final = re.compile(r"\A<think(?:ing)?>.*?</think(?:ing)?>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request to a model: instructions, one message, and the maximum tokens of the answer.

    `model` replaces the summarizer's own, if given.
    """

    system: str
    prompt: str
    max_tokens: int
    temperature: float = 0.2
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's answer, and the model that wrote it; token counts are the provider's, None if it reported none."""

    text: str
    model: str
    cut_off: bool = False
    declined: bool = False
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Style:
    """A form of summary: the name and version of its prompt, the headings that it must have, and its subject."""

    name: str
    version: str
    sections: tuple[str, ...]
    subject: str = "the conversation"

    @property
    def key(self) -> str:
        """The key of its instructions, `name.version`."""
        return f"{self.name}.{self.version}"


_FIRST_SECTIONS: Final = ("Goal", "Constraints & Preferences", "Progress", "Done", "In Progress")
_LAST_SECTIONS: Final = ("Blocked", "Key Decisions", "Next Steps", "Critical Context")
STRUCTURED: Final = Style("structured", PROMPT_VERSION, (*_FIRST_SECTIONS, *_LAST_SECTIONS))
PLANNED: Final = Style("planned", PROMPT_VERSION, (*_FIRST_SECTIONS, "Not Started", *_LAST_SECTIONS))
NARRATIVE: Final = Style("narrative", PROMPT_VERSION, ())
TURN_START: Final = Style(
    "prefix", "v2", ("Original Request", "Early Progress", "Context for Suffix"), "this beginning of a turn"
)
"""The style of the beginning of a turn whose later part stays visible."""
STYLES: Final = {style.name: style for style in (STRUCTURED, PLANNED, NARRATIVE)}
"""The styles that a policy may name."""
MERGE: Final = f"merge.{PROMPT_VERSION}"


def history_prompt(
    prompts: Mapping[str, str],
    transcript: str,
    previous: str,
    max_tokens: int,
    *,
    style: Style = STRUCTURED,
    focus: str = "",
    constraints: Sequence[str] = (),
    cumulative: bool = False,
) -> Prompt:
    """Write a request for a summary of events. `previous` is the summary of the events before them; empty if none.

    A `cumulative` summary replaces the previous one and carries its content over; any other must not repeat it.
    `constraints` must come back word for word. Raises KeyError for a style whose prompt is missing.
    """
    parts = [_fenced("conversation", transcript)]
    if previous.strip():
        parts.append(_fenced("previous-summary", inert(previous)))
    parts += _constraints(constraints)
    if wanted := " ".join(focus.split())[:FOCUS_CHARS_MAX]:
        parts.append(f"Additional focus: {inert(wanted)}")
    parts.append(f"Write the summary of {style.subject} now.")
    if previous.strip():
        parts.append(CARRY_OVER if cumulative else DO_NOT_REPEAT)
    return Prompt(_instructions(prompts, style.key, max_tokens), "\n\n".join(parts), max_tokens)


def merge_prompt(
    prompts: Mapping[str, str],
    texts: Sequence[str],
    max_tokens: int,
    *,
    style: Style = STRUCTURED,
    constraints: Sequence[str] = (),
) -> Prompt:
    """Write a request for one summary that replaces several, given oldest first."""
    numbered = "\n\n".join(
        f'<summary number="{number}">\n{inert(text)}\n</summary>' for number, text in enumerate(texts, start=1)
    )
    parts = [_fenced("summaries", numbered), *_constraints(constraints)]
    parts.append("Write the one summary that takes the place of all of these now.")
    instructions = _instructions(prompts, style.key, max_tokens)
    return Prompt(f"{instructions}\n\n{prompts[MERGE].strip()}", "\n\n".join(parts), max_tokens)


def retry_prompt(prompt: Prompt, answer: Completion, complaints: Sequence[str], chars: int | None = None) -> Prompt:
    """Repeat a request with the answer that the gate refused and its complaints, both in about `chars` characters."""
    parts = [prompt.prompt]
    faults = "\n".join(f"- {complaint}" for complaint in complaints)
    most = prompt.max_tokens * REJECTED_CHARS_PER_TOKEN
    if chars is not None:
        faults = cut(faults, chars // 2)
        most = min(most, chars - len(faults))
    if answer.text.strip() and most > 0:
        parts.append(_fenced("rejected-answer", inert(cut(answer.text, most))))
    parts.append(
        f"An earlier answer was rejected:\n{faults}\n\nWrite the whole summary anew, with these faults mended."
    )
    return replace(prompt, prompt="\n\n".join(parts))


def unwrapped(text: str) -> str:
    """Return an answer without the wrapping that models add: leading reasoning, a code fence or a `<summary>` tag."""
    text = _REASONED.sub("", text.strip(), count=1).strip()
    for wrapping in (_WRAPPED, _TAGGED):
        if found := wrapping.match(text):
            text = found.group(1).strip()
    return text


def _instructions(prompts: Mapping[str, str], name: str, max_tokens: int) -> str:
    words = max(20, int(max_tokens * WORDS_PER_TOKEN))
    return prompts[name].strip().replace("{words}", str(words))


def _fenced(tag: str, text: str) -> str:
    return f"<{tag}>\n{text}\n</{tag}>"


def _constraints(constraints: Sequence[str]) -> list[str]:
    """Return the part of the message that states the required content of the answer; none without constraints."""
    listed = "\n".join(f"- {inert(' '.join(one.split()))}" for one in constraints)
    return [_fenced("constraints", listed)] if constraints else []


ROOM_TOKENS_MIN: Final = 600
"""The minimum room of a request after its instructions; in a smaller window no request is made."""
PREVIOUS_SHARE: Final = 0.5
CONSTRAINTS_SHARE: Final = 0.125
REQUESTS_SHARE: Final = 0.125
"""The maximum shares, after the instructions, of the previous summary, of constraints, and of the messages with which
the user began the turn. The conversation has the rest, at least a quarter."""
CHARS_PER_TOKEN: Final = 3.0
"""The maximum characters per token that are assumed for any text, whatever the view's estimator counts."""
HALF_SHARE: Final = 0.55
"""A little more than half, so that a refused piece is divided in two and not in three."""
NEWEST_REQUESTS: Final = 2
GAP: Final = "[The messages in between are left out here.]"
"""The line after repeated messages of the user, before the paragraphs of a piece."""

Measure = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Portion:
    """The contents of one request. `is_continuation`: `previous` is the answer about the piece before this one."""

    texts: tuple[str, ...] = ()
    previous: str = ""
    constraints: tuple[str, ...] = ()
    is_continuation: bool = False


@dataclass(frozen=True, slots=True)
class Remainder:
    """The paragraphs that no request has held yet, and those of the user before them."""

    paragraphs: Sequence[Paragraph]
    write_request: Callable[[Portion], Prompt]
    measure: Measure
    constraints: Sequence[str] = ()
    user_paragraphs: tuple[Paragraph, ...] = field(default=())

    def size(self, request: Prompt) -> int:
        """Return the tokens of a request, without its answer."""
        return self.measure(request.system) + self.measure(request.prompt)

    def halved_limit(self, request: Prompt) -> int:
        """Return the limit to divide by after a model refused `request`: its instructions and half of the rest."""
        bare = self.size(self.write_request(Portion()))
        return bare + int((self.size(request) - bare) * HALF_SHARE)

    def take(self, previous: str, limit: int, *, is_continuation: bool) -> "tuple[Prompt, Remainder] | None":
        """Write a request of at most `limit` tokens about the first paragraphs; return it and the remainder.

        A paragraph longer than a piece is continued in the next piece. A piece that begins within a turn repeats the
        user's messages that began it. None if the limit leaves less than ROOM_TOKENS_MIN.
        """
        spare = limit - self.size(self.write_request(Portion()))
        if spare < ROOM_TOKENS_MIN:
            return None
        portion = Portion(
            self._requests(int(spare * REQUESTS_SHARE)),
            self._shortened(previous, int(spare * PREVIOUS_SHARE)),
            self._newest_constraints(int(spare * CONSTRAINTS_SHARE)),
            is_continuation,
        )
        room = limit - self.size(self.write_request(portion))
        while room > 0:
            taken, rest = self._divide(room)
            texts = (*portion.texts, *(paragraph.text for paragraph in taken))
            request = self.write_request(replace(portion, texts=texts))
            excess = self.size(request) - limit
            if excess <= 0:
                user_paragraphs = (*self.user_paragraphs, *(paragraph for paragraph in taken if paragraph.user))
                return request, replace(self, paragraphs=rest, user_paragraphs=user_paragraphs)
            room -= excess + 1  # texts may take more tokens joined than apart
        return None

    def _requests(self, tokens: int) -> tuple[str, ...]:
        """Return the first and the newest user messages of the turn in which the paragraphs begin, and a mark."""
        turn = self.paragraphs[0].turn if self.paragraphs else 0
        requests = [paragraph for paragraph in self.user_paragraphs if paragraph.turn == turn]
        requests = [*requests[:1], *requests[1:][-NEWEST_REQUESTS:]]
        if not requests:
            return ()
        each = tokens // len(requests)
        return (*(replace(one, body=self._shortened(one.body, each)).text for one in requests), GAP)

    def _shortened(self, text: str, tokens: int) -> str:
        taken = self.measure(text)
        return text if taken <= tokens else cut(text, len(text) * tokens // taken * 9 // 10)

    def _newest_constraints(self, tokens: int) -> tuple[str, ...]:
        chosen: list[str] = []
        for constraint in reversed(self.constraints):
            tokens -= self.measure(constraint) + 2
            if tokens < 0:
                break
            chosen.append(constraint)
        return tuple(reversed(chosen))

    def _divide(self, room: int) -> tuple[Sequence[Paragraph], Sequence[Paragraph]]:
        """Return the first piece and the rest; all paragraphs make as few pieces as possible, of about equal size."""
        sizes = [self.measure(paragraph.text) + 1 for paragraph in self.paragraphs]
        fair = math.ceil(sum(sizes) / math.ceil(sum(sizes) / room)) if sizes else 0
        tokens = 0
        for index, paragraph in enumerate(self.paragraphs):
            if tokens + sizes[index] > room or tokens >= fair:
                if index:
                    return self.paragraphs[:index], self.paragraphs[index:]
                chars = self._chars_within(paragraph, room)
                first, rest = replace(paragraph, body=paragraph.body[:chars]), paragraph.body[chars:]
                return (first,), (*([replace(paragraph, body=rest)] if rest else ()), *self.paragraphs[1:])
            tokens += sizes[index]
        return self.paragraphs, ()

    def _chars_within(self, paragraph: Paragraph, room: int) -> int:
        """Return the length of a paragraph's body that fits, in characters, at least one."""
        chars = len(paragraph.body)
        while chars > 1 and self.measure(replace(paragraph, body=paragraph.body[:chars]).text) >= room:
            chars = chars * 9 // 10
        return chars


def make_measure(count: Measure) -> Measure:
    """Return a function that counts a text's tokens by `count`, or by its characters if that is more."""
    return cache(lambda text: max(math.ceil(len(text) / CHARS_PER_TOKEN), count(text)))  # pieces are measured again
