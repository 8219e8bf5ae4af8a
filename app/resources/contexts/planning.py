"""Planning of contexts: in a thread if it takes long, and recorded in traces."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from app import tracing
from app.core.assembly.assemble import Assembled, assemble
from app.core.assembly.inputs import ContextInputs
from app.core.log.event import Event
from app.store.ids import new_id

PLAN: Final = "plan"
"""The name of the span around planning."""
OFF_LOOP_TOKENS: Final = 30_000
OFF_LOOP_EVENTS: Final = 300
"""Larger contexts are planned and rendered in a thread, so that they do not delay other requests."""

Done = TypeVar("Done")


async def plan_context(inputs: ContextInputs) -> Assembled:
    """Plan and render a context, in a thread if it is long."""
    with tracing.span(PLAN) as span:
        assembled = await run_off_loop(inputs.events, partial(assemble, inputs, new_id()))
        record_plan(span, assembled)
        return assembled


def record_plan(span: tracing.OpenSpan, assembled: Assembled) -> None:
    """Record the plan in a trace span."""
    call = assembled.call
    span.set(
        palimpsest__call__id=str(call.call_id),
        palimpsest__call__head=call.head,
        palimpsest__epoch__number=call.epoch,
        palimpsest__epoch__opened=assembled.epoch is not None,
        palimpsest__tokens__sent=call.estimate,
        palimpsest__tokens__log=assembled.inputs.loaded.log_tokens,
    )


def new_events(inputs: ContextInputs) -> Sequence[Event]:
    """Return the events that the context in memory does not have."""
    return inputs.events if inputs.last_context is None else inputs.events[inputs.last_context.plan.count :]


async def run_off_loop(events: Sequence[Event], work: Callable[[], Done]) -> Done:
    """Run work that takes time in proportion to its events, in a thread if they are many."""
    many = len(events) > OFF_LOOP_EVENTS or sum(event.tokens for event in events) > OFF_LOOP_TOKENS
    return await asyncio.to_thread(work) if many else work()
