"""Evidence before the model: the source messages of questions in contexts of a real server, and in baselines."""

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast
from uuid import uuid4

import httpx2
from palimpsest import AsyncSession
from palimpsest.types import PolicyDocument
from rank_bm25 import BM25Okapi

from app.core.log.event import Event
from app.core.policy.policy import Policy
from app.core.tokens.budget import budget_for
from app.core.tokens.counter import REQUEST_TOKENS
from app.wings.recall.answer import TOKENS as ROOM
from bench.believed.conversations import Conversation, Question, flat, joined, texts_of
from bench.cost.sessions import COUNTER, MODEL
from bench.quality.kept import text_of
from bench.quality.scenarios import BULK_MESSAGES, policy_of
from bench.quality.servers import Stack
from bench.recall.ranking import words
from bench.recall.served import as_posted

NEWEST, NEWEST_BM25, BM25 = "the newest messages", "the newest, and BM25's best", "BM25's best alone"
CONTEXT, RECALL = "**the context**", "**the context, and one recall**"
ARMS: Final = (NEWEST, CONTEXT, NEWEST_BM25, RECALL, BM25)


@dataclass(frozen=True, slots=True)
class Found:
    """A question before the model in one way: which of its sources are there, and the tokens that were sent."""

    conversation: str
    question: int
    kind: str
    window: int
    arm: str
    whole: tuple[bool, ...]
    by_sentence: tuple[bool, ...]
    tokens: int


async def measure(stack: Stack, one: Conversation, window: int) -> list[Found]:
    """Return the results of all questions in one window."""
    return [*Baselines(one).measure(window), *[found async for found in _served(stack, one, window)]]


async def _served(stack: Stack, one: Conversation, window: int) -> AsyncIterator[Found]:
    session = stack.client.session(f"bench-believed-{uuid4()}")
    await session.put_session(policy=cast(PolicyDocument, policy_of("default", window)), model=MODEL)
    path = f"/v1/sessions/{session.id}"
    await _append(stack, path, one.events)
    shown, tokens, _ = await _context(session, window, "main")
    for number in range(len(one.questions)):
        yield _found(one, number, window, CONTEXT, shown, tokens)
    shown, tokens, call = await _context(session, window - ROOM, "recall")
    await _indexed(stack.http, path)
    for number, question in enumerate(one.questions):
        asked = {"query": question.text, "call_id": call}
        answer = (await stack.http.post(f"{path}/recall", json=asked)).raise_for_status().json()
        told = joined(item["content"] for item in answer["items"] if item.get("content"))
        size = tokens + answer["tokens"]
        if answer["tokens"] > ROOM or size > window:
            raise AssertionError(f"{size} tokens in a window of {window}, {answer['tokens']} of them recalled")
        yield _found(one, number, window, RECALL, f"{shown}\n{told}", size)
    (await stack.http.delete(path)).raise_for_status()


async def _append(stack: Stack, path: str, events: Sequence[Event]) -> None:
    """Append events in pieces; the worker finishes after each, so that its summaries do not depend on its speed."""
    for begun in range(0, len(events), BULK_MESSAGES):
        body = {"events": as_posted(events[begun : begun + BULK_MESSAGES])}
        (await stack.http.post(f"{path}/events", json=body)).raise_for_status()
        await stack.idle()


async def _context(session: AsyncSession, window: int, view: str) -> tuple[str, int, str]:
    """Return a context's text, flat, its tokens, and the id of the call."""
    made = await session.post_context(format="openai", max_tokens=window, view=view)
    answer = made.to_dict()
    tokens = answer["tokens"]["estimate"]
    if tokens > answer["tokens"]["target"]:
        raise AssertionError(f"{tokens} tokens in a target of {answer['tokens']['target']}")
    return flat(text_of(answer["request"])), tokens, answer["call_id"]


async def _indexed(http: httpx2.AsyncClient, path: str) -> None:
    """Search until everything is indexed: each search indexes a part that is not."""
    while (await http.post(f"{path}/recall", json={"query": "once"})).raise_for_status().json().get("unsearched"):
        pass


class Baselines:
    """Windows filled without a server."""

    def __init__(self, one: Conversation) -> None:
        self._one = one
        self._sizes = [COUNTER.message(event.text) for event in one.events]
        self._scorer = BM25Okapi([words(text) for text in texts_of(one.events)])
        self._orders = [self._order(question) for question in one.questions]

    def measure(self, window: int) -> Iterator[Found]:
        """Yield the results of all questions."""
        for arm, newest, best in (
            (NEWEST, _target(window), 0),
            (NEWEST_BM25, _target(window - ROOM), ROOM),
            (BM25, 0, _target(window)),
        ):
            first, taken = self._newest(newest)
            kept = range(first, len(self._sizes))
            for number, order in enumerate(self._orders):
                chosen, size = self._best(order, best, kept)
                texts = [self._one.events[at].text for at in (*kept, *chosen)]
                yield _found(self._one, number, window, arm, joined(texts), taken + size)

    def _newest(self, room: int) -> tuple[int, int]:
        """Return the index of the first of the newest messages that fit, and their tokens."""
        first, taken = len(self._sizes), 0
        while first and taken + self._sizes[first - 1] <= room:
            first -= 1
            taken += self._sizes[first]
        return first, taken

    def _best(self, order: Sequence[int], room: int, kept: Collection[int]) -> tuple[list[int], int]:
        """Return the best messages that fit and are not kept, and their tokens."""
        chosen: list[int] = []
        taken = 0
        for at in order if room else ():
            if at not in kept and taken + self._sizes[at] <= room:
                chosen.append(at)
                taken += self._sizes[at]
        return chosen, taken

    def _order(self, question: Question) -> list[int]:
        scores = self._scorer.get_scores(words(question.text))
        return sorted((at for at in range(len(self._sizes)) if scores[at] > 0), key=lambda at: (-scores[at], -at))


def _target(window: int) -> int:
    return budget_for(Policy(), window, COUNTER.estimator.margin).target - REQUEST_TOKENS


def _found(one: Conversation, number: int, window: int, arm: str, shown: str, tokens: int) -> Found:
    question = one.questions[number]
    return Found(
        one.id,
        number,
        question.kind,
        window,
        arm,
        tuple(source.has_all(shown) for source in question.sources),
        tuple(source.by_sentence(shown) for source in question.sources),
        tokens,
    )


def by_arm(found: Sequence[Found]) -> Mapping[str, list[Found]]:
    """Return the results of each arm, in the order of ARMS."""
    return {arm: [one for one in found if one.arm == arm] for arm in ARMS}
