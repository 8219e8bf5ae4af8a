"""The check that no event is lost: the log is read back and compared with what was appended."""

from collections.abc import Sequence

from app.core.log.events import BOOKKEEPING, PREFIX
from app.core.render.formats import FORMATS
from app.recordings.recording import AppendEvents, AppendMessages, Object
from app.remote.client import Client, RequestFailed
from app.replay.report import Failure


def expected_events(step: AppendEvents | AppendMessages, *, spoken: bool) -> list[Object]:
    """The events that the log must hold after a step; `spoken` says whether it held any of the conversation before."""
    if isinstance(step, AppendEvents):
        return list(step.events)
    raw = FORMATS[step.format].read(step.messages)
    # System messages that lead a request are system prompts only before the conversation.
    behind = {"system.prompt": "system.message"} if spoken else {}
    return [event | {"type": behind.get(event["type"], event["type"])} for event in raw]


def is_spoken(event: Object) -> bool:
    """Whether an event is of the conversation."""
    return event["type"] not in PREFIX and event["type"] not in BOOKKEEPING


async def verify_log(client: Client, session: str, sent: Sequence[Object]) -> tuple[int, tuple[Failure, ...]]:
    """Read the whole log back; return the number of its events, and what is missing, duplicated or changed."""
    found = 0
    faults: list[Failure] = []
    try:
        async for event in client.log(session):
            fault = difference(sent, found, event)
            if fault:
                faults.append(Failure(f"event {found + 1}", "log-differs", fault))
            found += 1
    except RequestFailed as problem:
        faults.append(Failure("reading the log", problem.type, problem.detail))
        return found, tuple(faults)
    if found < len(sent):
        missing = f"{len(sent)} events were appended, the log holds {found}"
        faults.append(Failure("reading the log", "event-lost", missing))
    return found, tuple(faults)


def difference(sent: Sequence[Object], index: int, event: Object) -> str | None:
    """How an event of the log differs from the one sent at `index`; None if it does not."""
    if index >= len(sent):
        return "the log holds more events than were appended"
    if event["seq"] != index + 1:
        return f"seq is {event['seq']}"
    changed = [field for field, value in sent[index].items() if field != "native" and event.get(field) != value]
    return f"{', '.join(changed)} differ from what was sent" if changed else None
