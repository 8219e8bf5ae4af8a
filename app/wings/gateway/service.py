"""Model calls through the gateway: the context sent upstream in place of the client's list, and the outcome.

Nothing here delays a call for long. A call that cannot be budgeted in time is sent as the client wrote it, and replies
and outcomes are stored after the client has its response.
"""

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import structlog

from app.core.assembly.inputs import OBSERVED_VIEW, ContextRequest
from app.core.errors import CannotFit, ContextError, HeadConflict, IdempotencyConflict
from app.core.log.appends import parse_batch
from app.core.log.events import Draft, Json
from app.core.log.segments import is_held_out
from app.core.render.formats import FORMATS
from app.core.tokens.models import CacheProfile
from app.core.wire.bodies import parse
from app.core.wire.calls import NO_BODY, CallConversation, NotBudgeted, write_body
from app.core.wire.replies import Reply
from app.providers import redacted
from app.resources.contexts.service import ContextAnswer
from app.resources.events.appends import AppendRequest
from app.resources.feedback.measurements import Report
from app.store import audit
from app.wings.gateway.lists import (
    NO_LIMIT,
    Compactions,
    exceeds_threshold,
    make_context,
    make_item,
    preview,
    read_list,
)
from app.wings.gateway.upstream import Upstream

if TYPE_CHECKING:
    from app.runtime.wiring import Services

ERROR_CHARS_MAX: Final = 4_000
PARTIAL: Final = "partial"
"""Key in the metadata of the events of a reply that broke off."""
ERASED: Final = "session-erased"
ERASED_REMEMBERED: Final = 1_000
"""Number of erased sessions for which a process remembers that it has logged their bypass."""
Made = TypeVar("Made")
PAUSED: Final = "not sent: the client requested a pause after the compaction"
TOO_LATE: Final = "not sent: the context was made too late"


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call with its context: the body to send upstream, the place of its reply, and the provider's cache of it.

    `item` is the compaction that the call requested, to be inserted before the reply; None if none is due.
    """

    tenant_id: UUID
    session: str
    line: str
    call_id: UUID
    head: int
    epoch: int
    body: bytes
    context_tokens: int
    tokens_wanted: int
    cached_tokens: int
    cache: CacheProfile
    conversation: CallConversation
    item: Mapping[str, Json] | None = None

    def without_bodies(self) -> "PreparedCall":
        """Return the call without its bodies, since a stream may take minutes."""
        return replace(self, body=b"", conversation=replace(self.conversation, messages=(), body=NO_BODY))


@dataclass(frozen=True, slots=True)
class GatewayOutcome:
    """The outcome of a call. `secrets`: credentials to remove from its texts."""

    reply: Reply
    milliseconds: int
    error: Mapping[str, Json] | None = None
    secrets: Sequence[str] = ()


def message_error(message: str) -> Mapping[str, Json]:
    """Return an error with only a message, in the form in which outcomes are reported."""
    return {"message": message}


class Gateway:
    """Makes contexts for calls through the gateway, and logs their replies and outcomes.

    If it `observes`, the contexts are recorded in a view of their own, and the clients' own bytes are sent; otherwise
    this holds for the sessions in the share `holdout`.
    """

    def __init__(
        self,
        kernel: "Services",
        upstreams: Mapping[str, Upstream],
        context_seconds: float,
        compactions: Compactions,
        *,
        observes: bool = False,
        holdout: float = 0.0,
    ) -> None:
        self.observes = observes
        self._holdout = holdout
        self._kernel = kernel
        self.compactions = compactions
        self.upstreams = upstreams
        self.on_call = kernel.observers.gateway_call
        self.forwarded = kernel.forwarded_calls
        self._context_seconds = context_seconds
        self._background: set[asyncio.Task[Any]] = set()
        self._erased: deque[tuple[UUID, str]] = deque(maxlen=ERASED_REMEMBERED)

    async def prepare(self, tenant_id: UUID, session: str, conversation: CallConversation) -> PreparedCall:
        """Return the call as it is to be sent upstream. Raises NotBudgeted, ContextError, or TimeoutError.

        After a timeout the work continues in the background, since an append that has begun must not be interrupted:
        the client's next call finds it done.
        """
        request = self._context_request(conversation)
        if conversation.observed:
            request = replace(request, view=OBSERVED_VIEW)
            conversation = replace(conversation, hides_usage=False)  # the response is the client's own
        return await self._in_time(self._prepare(tenant_id, session, conversation, request), self._report_unsent)

    async def compact(self, tenant_id: UUID, session: str, conversation: CallConversation) -> str:
        """Return the content of a compaction item for a call's list. Raises NotBudgeted, ContextError or TimeoutError.

        After a timeout the work continues, as that of `prepare` does.
        """

        async def make() -> str:
            given = await read_list(self._kernel, tenant_id, session, conversation)
            request = self._context_request(conversation)
            return await self.compactions.make(tenant_id, session, given, request)

        async def ignore(task: asyncio.Task[str]) -> None:
            await asyncio.wait({task})

        return await self._in_time(make(), ignore)

    async def _in_time(
        self, work: Coroutine[Any, Any, Made], too_late: Callable[[asyncio.Task[Made]], Coroutine[Any, Any, None]]
    ) -> Made:
        """Return the result of some work. After a timeout it continues in the background, followed by `too_late`."""
        task = asyncio.create_task(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=self._context_seconds)
        except asyncio.CancelledError:
            self._run_in_background(too_late(task))
            raise
        if not done:
            self._run_in_background(too_late(task))
            raise TimeoutError
        return task.result()

    async def _prepare(
        self, tenant_id: UUID, session: str, conversation: CallConversation, request: ContextRequest
    ) -> PreparedCall:
        given = await read_list(self._kernel, tenant_id, session, conversation)
        answer = await make_context(self._kernel, tenant_id, session, given, request)
        call, inputs = answer.assembled.call, answer.assembled.inputs
        item = None
        if exceeds_threshold(answer.assembled, conversation):
            paused = conversation.compaction is not None and conversation.compaction.pauses
            sealed = await self.compactions.make(tenant_id, session, given, request, paused=paused)
            item = await asyncio.to_thread(make_item, conversation.format, sealed, inputs)
        return PreparedCall(
            tenant_id=tenant_id,
            session=session,
            line=answer.row_name,
            call_id=call.call_id,
            head=call.head,
            epoch=call.epoch,
            body=b"" if conversation.observed else await _body(answer, conversation),
            context_tokens=call.estimate,
            tokens_wanted=call.estimate + call.evicted_tokens,
            cached_tokens=call.manifest.cached_tokens,
            cache=inputs.cache,
            conversation=conversation,
            item=item,
        )

    async def prepare_count(self, tenant_id: UUID, session: str, conversation: CallConversation) -> bytes:
        """Return the body of a token count for the call. Raises NotBudgeted, ContextError, or TimeoutError."""
        request = self._context_request(conversation)
        async with asyncio.timeout(self._context_seconds):
            answer, count = await preview(self._kernel, tenant_id, session, conversation, request)
        return await _body(answer, conversation, conversation.messages[count:], counts=True)

    def _context_request(self, conversation: CallConversation, wait_ms: int | None = None) -> ContextRequest:
        requested = conversation.compaction
        return ContextRequest(
            format=conversation.format,
            model=conversation.model,
            wait_ms=wait_ms,
            served_tokens=conversation.served_tokens,
            held_out=conversation.held_out,
            window_max=(requested.tokens if requested is not None else None) or NO_LIMIT,
        )

    def held_out(self, tenant_id: UUID, session: str) -> bool | None:
        """Return whether a session is in the share that is held out; None if no share is, or all calls are observed."""
        return None if self.observes or not self._holdout else is_held_out(tenant_id, session, self._holdout)

    def should_log_bypass(self, tenant_id: UUID, session: str, reason: str) -> bool:
        """Return whether to log a bypass, and remember it: the bypasses of an erased session are logged once."""
        known = reason == ERASED and (tenant_id, session) in self._erased
        if reason == ERASED and not known:
            self._erased.append((tenant_id, session))
        return not known

    async def retry_smaller(self, call: PreparedCall, outcome: GatewayOutcome) -> PreparedCall | None:
        """Report a refusal. If the context was too long, return the call with a smaller one, once; otherwise None."""
        conversation = call.conversation
        try:
            report = await asyncio.to_thread(_report, outcome)
            verdict = await self._kernel.feedback.report(call.tenant_id, call.line, call.call_id, report)
            if conversation.observed or not verdict.outcome.overflow or verdict.call.retry_of is not None:
                return None
            request = self._context_request(conversation, verdict.wait_ms)
            smaller = await self._kernel.feedback.retry_request(
                call.tenant_id, call.line, call.call_id, request, ("format", "model")
            )
            return await self._prepare(call.tenant_id, call.session, conversation, smaller)
        except CannotFit:
            return None
        except (ContextError, NotBudgeted) as error:
            _log("a refused call is not asked again", call, error)
            return None

    def report_paused(self, call: PreparedCall) -> None:
        """Report a call that is not sent, since only its compaction was requested."""
        self.finish(call, GatewayOutcome(Reply(), 0, message_error(PAUSED)))

    def finish(self, call: PreparedCall, outcome: GatewayOutcome) -> None:
        """Log the reply and report the outcome, in the background."""
        self._run_in_background(self._end(call, outcome))

    async def _end(self, call: PreparedCall, outcome: GatewayOutcome) -> None:
        try:
            # A reply that broke off is useless once the client has repeated its call, through whichever process.
            newest = partial(audit.is_newest, self._kernel.database, call.tenant_id, call.line, call.call_id)
            if outcome.reply.complete or await newest():
                await self._append(call, outcome.reply)
        except ContextError as error:
            _log("a reply was not logged", call, error)
        finally:
            await self._try_to_report(call, await asyncio.to_thread(_report, outcome))

    async def _try_to_report(self, call: PreparedCall, report: Report) -> None:
        try:
            await self._kernel.feedback.report(call.tenant_id, call.line, call.call_id, report)
        except ContextError as error:
            _log("an outcome was not reported", call, error)

    async def _append(self, call: PreparedCall, reply: Reply) -> None:
        """Append a reply to the events that its call has seen, or on a line of its own if the log has continued
        otherwise, as it does when a request is sent and answered twice."""
        if not reply.messages:
            return
        drafts, digest = await asyncio.to_thread(_drafts, call.conversation, reply)
        try:
            await self._kernel.ingest.append(call.tenant_id, call.line, AppendRequest(drafts, call.head, None, digest))
        except (HeadConflict, IdempotencyConflict):
            await self._kernel.reconcile.append_to_side_line(call.tenant_id, call.line, call.head, drafts)

    async def _report_unsent(self, task: asyncio.Task[PreparedCall]) -> None:
        """Report a context that was made too late to be sent."""
        try:
            call = await task
        except (ContextError, NotBudgeted):
            return
        await self._try_to_report(call, Report(error=message_error(TOO_LATE)))

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:

        def log_failure(task: asyncio.Task[None]) -> None:
            self._background.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                structlog.get_logger().error("gateway", exc_info=error)

        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(log_failure)

    async def aclose(self) -> None:
        """Finish the work in the background, then close the upstreams."""
        while self._background:
            await asyncio.wait(self._background)
        for upstream in self.upstreams.values():
            await upstream.aclose()


async def _body(
    answer: ContextAnswer, conversation: CallConversation, following: Sequence[Json] = (), *, counts: bool = False
) -> bytes:
    """Return the call's body with the context in it, followed by the messages that it does not cover."""
    made = answer.assembled.rendered.request.body
    return await asyncio.to_thread(lambda: write_body(conversation, parse(made), following, counts=counts))


def _drafts(conversation: CallConversation, reply: Reply) -> tuple[tuple[Draft, ...], bytes]:
    """Return a reply's events, and a digest of them. Raises InvalidMessage or InvalidEvent."""
    events = FORMATS[conversation.format].read(reply.messages)
    if not reply.complete:
        events = [{**event, "metadata": {PARTIAL: True}} for event in events]
    if reply.id is not None and conversation.continuable and events:
        events[-1] = {**events[-1], "id": reply.id}
    digest = hashlib.sha256(json.dumps(events, default=str).encode()).digest()
    return tuple(parse_batch(events, native=True)), digest


def _report(outcome: GatewayOutcome) -> Report:
    """Convert an outcome to a report without credentials."""
    error = outcome.error or outcome.reply.error
    if error is not None:
        error = {
            name: redacted(value[:ERROR_CHARS_MAX], outcome.secrets) if isinstance(value, str) else value
            for name, value in error.items()
        }
    return Report(outcome.reply.usage if error is None else None, outcome.milliseconds, error)


def _log(event: str, call: PreparedCall, error: Exception) -> None:
    structlog.get_logger().warning(
        event, session=call.session, call=str(call.call_id), problem=type(error).__name__, detail=str(error)
    )
