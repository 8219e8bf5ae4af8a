"""Scenarios: the ways in which a session reaches the point at which its context is measured."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Final, cast

from palimpsest import AsyncSession, ContextInfeasibleError
from palimpsest.types import PolicyDocument

from app.core.policy.policy import DOCUMENTS
from bench.cost.sessions import MODEL
from bench.quality import texts
from bench.quality.answers import with_questions
from bench.quality.kept import Kept, count_dropped, covered, kept_needs, text_of
from bench.quality.recorded import Moment, Recorded
from bench.quality.servers import Stack
from palimpsest_tools.recordings.recording import AppendEvents, AppendMessages, Object
from palimpsest_tools.server import append

FIRST_ASKED, LIVED_THROUGH, RESTARTED, SMALLER = "first asked", "lived through", "after a restart", "a smaller view"
WINDOW_IN_CALL, WINDOW_IN_CALL_LATER = "the window in the call alone", "the window in the call alone, asked again"
PRESET_FROM_START, PRESET_CHANGED = "{} from the start", "default, then {}"
PRESET_CHANGED_LATER = "default, then {}, worker done"
BULK_MESSAGES: Final = 450
"""Messages in one request; the worker finishes after each, so that its summaries do not depend on its speed."""


@dataclass(frozen=True, slots=True)
class Record:
    """A measured context: its `scenario` is one of the names above, `at` a message of a recording."""

    scenario: str
    window: int
    recording: str
    at: int
    kept: Kept


@dataclass(slots=True)
class Lane:
    """One server and the scenarios on it; after `wait_after` contexts that report a due summary, it awaits the worker.

    Each measured context is written to the folder `texts`, for people to read.
    """

    stack: Stack
    wait_after: int
    texts: Path | None = None
    _numbers: Iterator[int] = field(default_factory=count)

    async def first_asked(
        self, recording: Recorded, moment: Moment, window: int, smaller: int | None, *, keep_first: bool = True
    ) -> AsyncIterator[Record]:
        """Append all messages in bulk, wait for the worker, and measure the first context, and a second view's."""
        session = await self._loaded(recording, moment, policy_of("default", window))
        record = await self._measured(FIRST_ASKED, session, recording, moment, {"max_tokens": window})
        if keep_first:
            yield record
        if smaller is not None:
            side = {"max_tokens": smaller, "view": "side"}
            yield await self._measured(SMALLER, session, recording, moment, side)

    async def window_in_call(self, recording: Recorded, moment: Moment, window: int) -> AsyncIterator[Record]:
        """Measure the first context where only its request names the window, and another when the worker is done."""
        session, body = await self._loaded(recording, moment, None), {"max_tokens": window}
        yield await self._measured(WINDOW_IN_CALL, session, recording, moment, body)
        await self.stack.idle()
        yield await self._measured(WINDOW_IN_CALL_LATER, session, recording, moment, body)

    async def preset_from_start(
        self, recording: Recorded, moment: Moment, window: int, preset: str
    ) -> AsyncIterator[Record]:
        """Measure the first context under another preset."""
        session = await self._loaded(recording, moment, policy_of(preset, window))
        yield await self._measured(PRESET_FROM_START.format(preset), session, recording, moment, {"max_tokens": window})

    async def preset_changed(
        self, recording: Recorded, moment: Moment, window: int, preset: str
    ) -> AsyncIterator[Record]:
        """Measure a view whose preset changes from `default`: immediately, and when the worker is done."""
        session = await self._loaded(recording, moment, policy_of("default", window))
        await self._measured(FIRST_ASKED, session, recording, moment, {"max_tokens": window})
        other = {"max_tokens": window, "policy": policy_of(preset, window)}
        yield await self._measured(PRESET_CHANGED.format(preset), session, recording, moment, other)
        await self.stack.idle()
        yield await self._measured(
            PRESET_CHANGED_LATER.format(preset), session, recording, moment, {"max_tokens": window}
        )

    async def lived_through(
        self, recordings: Sequence[Recorded], window: int, *, restart: bool
    ) -> AsyncIterator[Record]:
        """Append sessions call by call and measure contexts at their points; with `restart`, again after an API
        restart.
        """
        lives = [_Life(recording, self._name()) for recording in recordings]
        for life in lives:
            session = await self._created(life.session, policy_of("default", window))
            await append(session, AppendEvents(life.recording.head))
        for number in range(max((len(life.recording.moments) for life in lives), default=0)):
            there = [life for life in lives if number < len(life.recording.moments)]
            for life in there:
                yield await self._live(life, life.recording.moments[number], window)
            if restart and there:
                await self.stack.restart_api()
                for life in there:
                    moment, body = life.recording.moments[number], {"max_tokens": window}
                    yield await self._measured(RESTARTED, life.session, life.recording, moment, body)

    async def _live(self, life: "_Life", moment: Moment, window: int) -> Record:
        """Advance the session to the moment's point, and measure the context there."""
        at, session = moment.point.at, self.stack.client.session(life.session)
        written = 0
        for begun, upto in life.recording.calls(life.done, at):
            await append(session, AppendMessages("openai", life.recording.messages[begun:upto]))
            life.done = upto
            if upto == at:
                break
            now = life.recording.times[upto - 1]
            try:
                answer = await session.post_context(**_context_body({"max_tokens": window}, now))
            except ContextInfeasibleError:
                continue
            written += answer.compaction.state in ("scheduled", "running")
            if self.wait_after and written >= self.wait_after:
                await self.stack.idle()
                written = 0
        if self.wait_after:
            await self.stack.idle()
        return await self._measured(LIVED_THROUGH, life.session, life.recording, moment, {"max_tokens": window})

    async def _loaded(self, recording: Recorded, moment: Moment, policy: Mapping[str, Any] | None) -> str:
        """Create a session with all messages before a moment, and wait for the worker's summaries."""
        session = await self._created(self._name(), policy)
        await append(session, AppendEvents(recording.head))
        for begun in range(0, moment.point.at, BULK_MESSAGES):
            messages = recording.messages[begun : min(begun + BULK_MESSAGES, moment.point.at)]
            await append(session, AppendMessages("openai", messages))
            await self.stack.idle()
        return session.id

    async def _created(self, name: str, policy: Mapping[str, Any] | None) -> AsyncSession:
        session = self.stack.client.session(name)
        await session.put_session(policy=cast(PolicyDocument | None, policy), model=MODEL)
        return session

    async def _measured(self, scenario: str, session: str, recording: Recorded, moment: Moment, body: Object) -> Record:
        """Request a context and measure it."""
        record = Record(
            scenario, body["max_tokens"], recording.id, moment.point.at, kept_needs(moment, recording.system, "")
        )
        try:
            context = await self.stack.client.session(session).post_context(**_context_body(body, moment.now))
        except ContextInfeasibleError as problem:
            return replace(record, kept=replace(record.kept, refused=problem.detail))
        answer = context.to_dict()
        live = await self.stack.all(f"/v1/sessions/{session}/summaries", live="true")
        epochs = await self.stack.all(f"/v1/sessions/{session}/epochs", view=body.get("view", "main"))
        text = text_of(answer["request"])
        if self.texts is not None:
            title = f"{scenario}, {body['max_tokens']} tokens"
            texts.write(self.texts, title, recording, moment, answer["request"])
        gone, dropped = count_dropped(answer["evictions"], live)
        kept = replace(
            kept_needs(moment, recording.system, text),
            answers=with_questions(moment.answers, answer["request"], text),
            used=answer["tokens"]["estimate"] / answer["tokens"]["target"],
            lost=gone,
            dropped=dropped,
            covered=(len(covered(live)), answer["head"]),
            summaries=len(answer["summaries"]),
            cause=next((epoch["cause"] for epoch in epochs if epoch["epoch"] == answer["epoch"]), ""),
        )
        return replace(record, kept=kept)

    def _name(self) -> str:
        return f"quality-{next(self._numbers)}"


@dataclass(slots=True)
class _Life:
    """A session that is replayed; its first `done` messages are in the log."""

    recording: Recorded
    session: str
    done: int = 0


def policy_of(preset: str, window: int) -> Mapping[str, Any]:
    """Return a preset with a window, which the worker uses."""
    return {**DOCUMENTS[preset], "window_tokens": window}


def _context_body(body: Object, now: str | None) -> dict[str, Any]:
    return {"format": "openai", **body} | ({} if now is None else {"now": now})
