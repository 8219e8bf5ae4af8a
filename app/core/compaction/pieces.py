"""The division of a conversation into pieces that fit a summarizing model's window."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final

from app.core.compaction.prompt import Prompt
from app.core.compaction.transcript import Paragraph, cut

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
    """The paragraphs that no request has held yet, and those of the user before them. `form` writes a request."""

    paragraphs: Sequence[Paragraph]
    form: Callable[[Portion], Prompt]
    measure: Measure
    constraints: Sequence[str] = ()
    user_paragraphs: tuple[Paragraph, ...] = field(default=())

    def size(self, ask: Prompt) -> int:
        """Return the tokens of a request, without its answer."""
        return self.measure(ask.system) + self.measure(ask.prompt)

    def halved_limit(self, ask: Prompt) -> int:
        """Return the limit to divide by after a model refused `ask`: its instructions and half of its other content."""
        bare = self.size(self.form(Portion()))
        return bare + int((self.size(ask) - bare) * HALF_SHARE)

    def take(self, previous: str, limit: int, *, is_continuation: bool) -> "tuple[Prompt, Remainder] | None":
        """Write a request of at most `limit` tokens about the first paragraphs; return it and the remainder.

        A paragraph longer than a piece is continued in the next piece. A piece that begins within a turn repeats the
        user's messages that began it. None if the limit leaves less than ROOM_TOKENS_MIN.
        """
        spare = limit - self.size(self.form(Portion()))
        if spare < ROOM_TOKENS_MIN:
            return None
        portion = Portion(
            self._requests(int(spare * REQUESTS_SHARE)),
            self._shortened(previous, int(spare * PREVIOUS_SHARE)),
            self._newest_constraints(int(spare * CONSTRAINTS_SHARE)),
            is_continuation,
        )
        room = limit - self.size(self.form(portion))
        while room > 0:
            taken, rest = self._divide(room)
            ask = self.form(replace(portion, texts=(*portion.texts, *(paragraph.text for paragraph in taken))))
            excess = self.size(ask) - limit
            if excess <= 0:
                user_paragraphs = (*self.user_paragraphs, *(paragraph for paragraph in taken if paragraph.user))
                return ask, replace(self, paragraphs=rest, user_paragraphs=user_paragraphs)
            room -= excess + 1  # texts may take more tokens joined than apart
        return None

    def _requests(self, tokens: int) -> tuple[str, ...]:
        """Return the first and the newest user messages of the turn in which the paragraphs begin, and a mark."""
        turn = self.paragraphs[0].turn if self.paragraphs else 0
        said = [paragraph for paragraph in self.user_paragraphs if paragraph.turn == turn]
        said = [*said[:1], *said[1:][-NEWEST_REQUESTS:]]
        if not said:
            return ()
        each = tokens // len(said)
        return (*(replace(one, body=self._shortened(one.body, each)).text for one in said), GAP)

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
        """Return the first of as few pieces as fit, all of about the same size, and the rest."""
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
