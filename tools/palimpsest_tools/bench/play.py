"""One recorded session through the server, call by call, and then under the other rules."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate

from palimpsest import AsyncPalimpsest, AsyncSession, PalimpsestError
from palimpsest.types import ContextOut

from app.core.lexicon.times import from_seconds, time_text
from app.core.log.event import Event
from app.core.log.events import BOOKKEEPING, PREFIX, EventType, Json
from app.core.render.formats import FORMATS
from app.core.tokens.models import ANTHROPIC_HOUR, TABLE, CacheProfile, cache_profile, profile
from palimpsest_tools.bench.outcomes import OURS, Recorded, RuleOutcome, outcome, recorded, rules_for
from palimpsest_tools.bench.sessions import CallMade, LoggedSession, Value
from palimpsest_tools.bench.values import Holders, strings, values_in
from palimpsest_tools.recordings.recording import AppendEvents, AppendMessages, ModelCall, Object, Recording
from palimpsest_tools.replay.bill import BilledBlock, BilledRequest, Cache, charge
from palimpsest_tools.replay.options import Options
from palimpsest_tools.replay.report import Failure
from palimpsest_tools.replay.requests import rendered
from palimpsest_tools.replay.run import expected_events
from palimpsest_tools.server import CheckFailed, append, new_session


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """A session under every rule. With a `failure` there are no outcomes: the rules could not be compared.

    `outside` is the size of the agent's own prompt and tools, None if the log does not show it.
    """

    recording: Recording
    window: int
    rules: CacheProfile
    outside: int | None
    recorded: Recorded
    outcomes: Mapping[str, RuleOutcome] = field(default_factory=dict)
    failure: Failure | None = None


@dataclass(slots=True)
class _Run:
    """The state of a session's run. `scale` converts tokens counted at append into those of a rendered request."""

    rules: CacheProfile
    window: int
    outside: int | None
    ours: RuleOutcome = field(default_factory=RuleOutcome)
    events: list[Event] = field(default_factory=list)
    calls: list[CallMade] = field(default_factory=list)
    holders: Holders = field(default_factory=Holders)
    cache: Cache = field(default_factory=Cache)
    text: str = ""
    scale: float = 1.0
    tools: dict[Json, str] = field(default_factory=dict)


async def play_session(
    client: AsyncPalimpsest, recording: Recording, id: str, options: Options, on_call: Callable[[int], None]
) -> SessionOutcome:
    """Play a recording into the new session `id`, and compare. `on_call` gets the number of each call."""
    calls = [step for step in recording.steps if isinstance(step, ModelCall)]
    model = options.model or recording.model
    form = options.format_for(recording)
    rules = cache_profile(model, None, TABLE, FORMATS[form].cache)
    billed = recorded(calls, rules)
    if billed.writes_hour * 2 > billed.writes:
        rules = replace(rules, write_price=ANTHROPIC_HOUR.write_price, ttl_seconds=ANTHROPIC_HOUR.ttl_seconds)
        hour: dict[str, Json] = {"write_price": rules.write_price, "ttl_seconds": rules.ttl_seconds}
        options = replace(options, policy=options.policy or {"cache": hour})
    window = options.max_tokens or profile(model).window_tokens
    run = _Run(rules, window, None)
    options = replace(options, max_tokens=window)
    result = SessionOutcome(recording, window, rules, None, billed)
    try:
        async with new_session(client, id, recording=recording.id, **options.settings) as session:
            await _steps(run, session, recording, options, on_call)
    except (CheckFailed, PalimpsestError) as error:
        return replace(result, outside=run.outside, failure=Failure.of(f"call {len(run.calls) + 1}", error))
    return replace(result, outside=run.outside, outcomes=_compared(run, recording.id))


def _compared(run: _Run, id: str) -> dict[str, RuleOutcome]:
    """Return the outcome of each rule, ours first."""
    log = LoggedSession(id, _scaled(run), tuple(run.calls), run.outside or 0)
    others = rules_for(log, run.window)
    return {OURS: run.ours} | {
        name: outcome(log, play(log, run.rules), run.rules, run.window) for name, play in others.items()
    }


def _scaled(run: _Run) -> tuple[Event, ...]:
    """Return the events with tokens of a rendered request, which add up to those of the log."""
    sizes = [0, *(round(total * run.scale) for total in accumulate(event.tokens for event in run.events))]
    return tuple(
        replace(event, tokens=after - before)
        for event, before, after in zip(run.events, sizes, sizes[1:], strict=False)
    )


async def _steps(
    run: _Run, session: AsyncSession, recording: Recording, options: Options, on_call: Callable[[int], None]
) -> None:
    open_call: tuple[int, float] | None = None
    for step in recording.batches():
        if not isinstance(step, ModelCall):
            answers = await append(session, step)
            used = _append(run, step, [answer.tokens for answer in answers], in_call=open_call is not None)
            if open_call is not None and used is not None:
                run.calls.append(CallMade(*open_call, used))
                open_call = None
            continue
        if open_call is not None:
            run.calls.append(CallMade(*open_call, ()))
        now = None if step.at is None else time_text(from_seconds(step.at))
        if run.outside is None and step.usage is not None and step.whole:
            await _measure(run, session, recording, options, step, now)
        answer = await options.context(
            session, recording, options.max_tokens, now, model=step.model, outside=run.outside
        )
        _call(run, answer, step.at or 0.0)
        open_call = (len(run.events), step.at or 0.0)
        on_call(len(run.calls) + 1)
    if open_call is not None:
        run.calls.append(CallMade(*open_call, ()))


async def _measure(
    run: _Run, session: AsyncSession, recording: Recording, options: Options, call: ModelCall, now: str | None
) -> None:
    """Find the tokens that the agent sent outside the recorded conversation: those the context does not explain."""
    form = options.format_for(recording)
    shown = await session.preview_context(format=form, max_tokens=None, model=call.model, now=now)  # type: ignore[arg-type]
    if not shown.evictions and call.usage is not None:
        run.outside = max(0, call.usage.input - shown.tokens.estimate)


def _append(
    run: _Run, step: AppendEvents | AppendMessages, tokens: list[int], *, in_call: bool
) -> tuple[Value, ...] | None:
    """Add the events to the log; return the values that the response at its beginning used, None without one."""
    begun = any(event.type not in PREFIX and event.type not in BOOKKEEPING for event in run.events)
    sent = expected_events(step, in_conversation=begun)
    used: list[Value] = []
    if in_call:
        texts = [text for event in sent if event["type"] == "tool.call" for text in values_in(_arguments(event))]
        used = [value for text in dict.fromkeys(texts) if (value := run.holders.value(text)) is not None]
        for value in used:
            seen = 1.0 if value.text in run.text else 0.0
            run.ours.kept.add(value.text, seen, only_results=value.only_results)
    for event, size in zip(sent, tokens, strict=True):
        logged = _event(run, event, size)
        run.events.append(logged)
        run.holders.add(logged)
    return tuple(used) if in_call else None


def _event(run: _Run, event: Object, tokens: int) -> Event:
    if event["type"] == "tool.call":
        run.tools[event.get("call_id")] = str(event.get("tool") or "")
    return Event(
        seq=len(run.events) + 1,
        type=EventType(event["type"]),
        turn=0,
        tokens=tokens,
        tool=run.tools.get(event.get("call_id")),
        body=event,
    )


def _arguments(event: Object) -> Json:
    """Return a call's arguments as an object, also if they were recorded as text."""
    return dict(Event(0, EventType.TOOL_CALL, 0, 0, body=event).arguments) or event.get("arguments")


def _call(run: _Run, answer: ContextOut, at: float) -> None:
    """Bill a context of ours. The agent's own prompt and tools precede it, with a marker of theirs if one is left."""
    estimate, outside = answer.tokens.estimate, run.outside or 0
    if not answer.evictions:
        counted = sum(event.tokens for event in run.events)
        run.scale = estimate / counted if counted else 1.0
    shown = rendered(answer.request, estimate, at)
    marks = tuple(mark + 1 for mark in shown.breakpoints)
    marks = (1, *marks) if outside and len(marks) < run.rules.markers else marks
    blocks = (BilledBlock("prefix", outside), *shown.blocks)
    bill, run.cache = charge(run.rules, run.cache, BilledRequest(blocks, marks, at))
    run.ours.bill += bill
    run.ours.peak = max(run.ours.peak, estimate + outside)
    run.ours.over_window += estimate + outside > run.window
    run.text = "\n".join(strings(answer.request))
