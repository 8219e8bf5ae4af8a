"""The export of a whole log as one conversation in a provider's format."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.core.log.event import Event
from app.core.log.events import EventType, Json
from app.core.plan.state.context import Context
from app.core.plan.state.frontier import Frontier
from app.core.plan.state.projection import project
from app.core.plan.update import update_prefix
from app.core.render.formats.fit import Loss, prepare
from app.core.render.formats.parts import is_own
from app.core.render.request import arrange, write
from app.core.tokens.counter import HEURISTIC, Counter
from app.core.tokens.scales import AREA
from palimpsest_tools.recordings.recording import Object

_COUNTER: Final = Counter(HEURISTIC, AREA)
_SEQS_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Conversation:
    """A request with the whole log, as JSON; `notes` name the content that is left out or changed."""

    body: bytes
    notes: tuple[str, ...]


def conversation(log: Sequence[Object], form: str) -> Conversation:
    """Render a log's events, as the API returns them, in the format `form`, with nothing left out and valid to send."""
    events = tuple(_events(log))
    state = update_prefix(events, Frontier())
    turn = max((event.turn for event in events), default=0)
    context = project(events, state, _COUNTER, turn=turn)
    fitted = prepare(arrange(context, state), form)
    return Conversation(write(form, fitted.layout).body, tuple(_notes(context, state, form, fitted.losses)))


def _events(log: Sequence[Object]) -> Iterator[Event]:
    calls: dict[Json, Event] = {}
    for body in log:
        kind, call_id = EventType(body["type"]), body.get("call_id")
        call = calls.pop(call_id, None) if kind is EventType.TOOL_RESULT else None
        event = Event(
            seq=body["seq"],
            type=kind,
            turn=body["turn"],
            tokens=body["tokens"],
            call_id=call_id,
            tool=body.get("tool") or (call.tool if call else None),
            call_seq=call.seq if call else None,
            author=body.get("author"),
            is_error=bool(body.get("is_error")),
            body=body,
        )
        if kind is EventType.TOOL_CALL:
            calls[call_id] = event
        yield event


def _notes(context: Context, state: Frontier, form: str, losses: Sequence[Loss]) -> Iterator[str]:
    if waiting := sorted(context.open_calls):
        yield f"{_events_named(waiting)} without a result: shown with one that says so"
    if replaced := [one.seq for one in state.superseded]:
        yield f"{_events_named(replaced)} left out: a later system prompt or tool list took its place"
    thinking = (item.event for item in context.items if item.event.has_reasoning)
    if foreign := [event.seq for event in thinking if not is_own(event.block, form)]:
        yield f"reasoning of {_events_named(foreign)} left out: only its own provider reads it"
    for what in sorted({loss.what for loss in losses}):
        yield f"{what} of {_events_named(sorted({loss.seq for loss in losses if loss.what == what}))} left out"


def _events_named(seqs: Sequence[int]) -> str:
    named = ", ".join(map(str, seqs[:_SEQS_NAMED]))
    more = f" and {len(seqs) - _SEQS_NAMED} more" if len(seqs) > _SEQS_NAMED else ""
    return f"event{'s' if len(seqs) > 1 else ''} {named}{more}"
