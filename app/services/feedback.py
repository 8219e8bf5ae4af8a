"""Feedback: what became of a call when it was sent, what to do about it, and what it teaches."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

import asyncpg
import structlog

from app.core import calibration
from app.core.budget import budget_for
from app.core.calibration import Calibration, Reported, Sample
from app.core.errors import Conflict, InvalidRequest, NotFound, StoreUnavailable
from app.core.events import Json
from app.core.overflow import MESSAGE_CHARS_MAX, Overflow, classify
from app.core.policy import Policy
from app.services.counting import Counting
from app.services.ids import new_id
from app.services.policies import Policies
from app.services.rendering import ContextRequest, Injection, Retry
from app.services.tails import Tails
from app.store import calibrations, compactions, outcomes, sessions
from app.store.engine import Connection, Database
from app.store.outcomes import Call, Outcome

REASON: Final = "overflow"


@dataclass(frozen=True, slots=True)
class Report:
    """A report as it came: figures as the provider counts them, and its error, if there was one."""

    usage: Mapping[str, int | None] | None = None
    latency_ms: int | None = None
    error: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a report; `overflow` is what matched, `off` by how much of the truth the estimate was off.

    Both are None where the same was reported before.
    """

    body: dict[str, Json]
    overflow: Overflow | None = None
    off: float | None = None


class Feedback:
    """The feedback use case."""

    def __init__(self, database: Database, counting: Counting, policies: Policies, tails: Tails) -> None:
        self._database = database
        self._counting = counting
        self._policies = policies
        self._tails = tails

    async def report(self, tenant_id: UUID, external_id: str, call_id: UUID, report: Report) -> Verdict:
        """Record it, learn from it, and say what to do: nothing, ask again for less, or stop.

        Raises NotFound, InvalidRequest for a report of nothing, or Conflict where something else was reported before.
        """
        session_id = sessions.session_key(tenant_id, external_id)
        call = await self._call(session_id, tenant_id, external_id, call_id)
        policy = await self._policies.get(tenant_id, call.policy)
        outcome, overflow = _outcome(call, policy, report)
        parent = None
        if call.retry_of is not None:
            parent = await outcomes.find(self._database, session_id, tenant_id, call.retry_of)
        async with self._database.transaction() as tx:
            now = await outcomes.lock(tx, session_id, tenant_id, call_id)
            if now is None:
                raise NotFound(f"there is no call {call_id}", call_id=str(call_id))
            if now.outcome is not None and _same(now.outcome, outcome):
                return Verdict(_answer(external_id, now, now.outcome))
            if now.outcome is not None and (now.outcome.error is None or now.outcome.overflow):
                raise Conflict("another outcome of this call was reported before", call_id=str(call_id))
            await outcomes.store(tx, session_id, call_id, outcome)
            known = await self._learn(tx, tenant_id, call, parent, outcome, overflow)
            reported = None if outcome.error is not None else _reported(call, outcome)
            if reported is not None and not await outcomes.seen(tx, session_id, call.view, reported):
                reported = None
            if known is not None:
                window = int(call.manifest["window"])
                target = budget_for(policy, window, known.margin, known.ratio).target
                await outcomes.set_target(tx, session_id, call, window, max(1, target))
        if known is not None:
            self._tails.reported(session_id, call.view, call.model, known, reported)
        if overflow is not None and policy.summarize.enabled:
            await self._compact(session_id, tenant_id)
        return Verdict(_answer(external_id, call, outcome), overflow, _off(call, outcome))

    async def retrying(
        self, tenant_id: UUID, external_id: str, retry_of: UUID, request: ContextRequest, given: Collection[str]
    ) -> ContextRequest:
        """A request for what an earlier call should have been: what is not `given` is as that call had it.

        Raises NotFound without such a call, Conflict where it did not overflow or is a retry itself, InvalidRequest for
        another view or an earlier head.
        """
        session_id = sessions.session_key(tenant_id, external_id)
        call = await self._call(session_id, tenant_id, external_id, retry_of)
        if call.retry_of is not None:
            raise Conflict("this call was a retry already", call_id=str(retry_of))
        if call.outcome is None or not call.outcome.overflow:
            raise Conflict("this call has not been reported as too long", call_id=str(retry_of))
        if "view" in given and request.view != call.view:
            raise InvalidRequest(f"that call was of the view {call.view!r}", field="view")
        if request.at is not None:
            raise InvalidRequest("a retry is of the newest context", field="at")
        injections = tuple(Injection(i["name"], i["content"]) for i in call.manifest.get("injections", ()))
        stated = (call.outcome.error or {}).get("overflow")
        tokens = stated.get("tokens") if isinstance(stated, Mapping) else None
        return replace(
            request,
            view=call.view,
            format=request.format if "format" in given else call.format,
            model=request.model if request.model is not None else call.model,
            max_tokens=request.max_tokens if request.max_tokens is not None else int(call.manifest["window"]),
            injections=request.injections if "injections" in given else injections,
            force=True,
            retry=Retry(retry_of, call.counted or call.estimate, tokens if isinstance(tokens, int) else None),
        )

    async def calibrations(self, tenant_id: UUID, limit: int, after: tuple[str, str] | None) -> list[Mapping[str, Any]]:
        """What is known by model and estimator."""
        return await calibrations.page(self._database, tenant_id, limit, after)

    async def _call(self, session_id: UUID, tenant_id: UUID, external_id: str, call_id: UUID) -> Call:
        call = await outcomes.find(self._database, session_id, tenant_id, call_id)
        if call is None:
            raise NotFound(f"session {external_id!r} has no call {call_id}", call_id=str(call_id))
        return call

    async def _learn(
        self,
        tx: Connection,
        tenant_id: UUID,
        call: Call,
        parent: Call | None,
        outcome: Outcome,
        overflow: Overflow | None,
    ) -> Calibration | None:
        """What is known with this; None where it teaches nothing."""
        window = int(call.manifest["window"])
        sample = _sample(call, outcome, overflow, window)
        if sample is None:
            return None
        margin = self._counting.session_counter(str(call.manifest["estimator"]), call.model).estimator.margin
        before, samples = await calibrations.lock(tx, tenant_id, call.model, str(call.manifest["estimator"]), margin)
        samples = calibration.kept(samples, sample)
        known = calibration.learn(before, samples, margin)
        if sample.sensible and not sample.least:
            known = replace(known, samples=known.samples + 1)
        named = None if overflow is None else overflow.window_with(int(call.manifest["reserve"]))
        if named is not None:
            known = calibration.with_window(known, window, named)
        if overflow is None:
            known = calibration.without_window(known, sample.reported)
            known = _unnamed_window(known, parent, sample)
        if known != before or sample.least:
            await calibrations.save(tx, tenant_id, call.model, known, samples)
        return known

    async def _compact(self, session_id: UUID, tenant_id: UUID) -> None:
        """Have what was too long summarized. That it cannot be asked for now is no fault of who reports."""
        try:
            async with self._database.transaction() as tx:
                await compactions.schedule(tx, session_id, tenant_id, new_id(), REASON)
        except (StoreUnavailable, asyncpg.PostgresError) as error:
            structlog.get_logger().warning("no compaction", session=str(session_id), error=str(error))


def _outcome(call: Call, policy: Policy, report: Report) -> tuple[Outcome, Overflow | None]:
    """The report as it is stored."""
    usage = {name: value for name, value in (report.usage or {}).items() if value is not None}
    if not usage and report.error is None and report.latency_ms is None:
        raise InvalidRequest("neither usage nor an error nor a latency is reported", field="usage")
    total = usage.get("input_tokens")
    read, write = usage.get("cache_read_tokens"), usage.get("cache_write_tokens")
    if total is not None and call.format == "anthropic":
        total += (read or 0) + (write or 0)
    error, overflow = None, None
    if report.error is not None:
        given = {name: value for name, value in report.error.items() if value is not None}
        if isinstance(message := given.get("message"), str):
            given["message"] = message[:MESSAGE_CHARS_MAX]
        message, code, status = (given.get(name) for name in ("message", "code", "status"))
        overflow = classify(
            _text(message), _text(code), policy.overflow.patterns, status if isinstance(status, int) else None
        )
        error = given if overflow is None else {**given, "overflow": _matched(overflow)}
    return Outcome(total, read, write, usage.get("output_tokens"), report.latency_ms, error, overflow is not None), (
        overflow
    )


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _matched(overflow: Overflow) -> dict[str, Json]:
    stated = {"tokens": overflow.tokens, "window": overflow.window, "answer": overflow.answer}
    return {"set": overflow.set, "pattern": overflow.pattern} | {k: v for k, v in stated.items() if v}


def _same(before: Outcome, now: Outcome) -> bool:
    """Whether the same was reported; what it was taken for does not matter."""
    said = [{k: v for k, v in (one.error or {}).items() if k != "overflow"} for one in (before, now)]
    return said[0] == said[1] and replace(before, error=None, overflow=False) == replace(
        now, error=None, overflow=False
    )


def _answer(external_id: str, call: Call, outcome: Outcome) -> dict[str, Json]:
    body: dict[str, Json] = {"overflow": outcome.overflow, "action": "none"}
    if not outcome.overflow:
        return body
    body["matched"] = (outcome.error or {}).get("overflow")
    body["action"] = "retry" if call.retry_of is None else "stop"
    if call.retry_of is None:
        ask = {"retry_of": str(call.call_id), "view": call.view, "format": call.format, "model": call.model}
        ask["max_tokens"] = call.manifest["window"]
        path = f"/v1/sessions/{external_id}/context"
        body["next"] = {"method": "POST", "path": path, "body": {k: v for k, v in ask.items() if v is not None}}
    return body


def _sample(call: Call, outcome: Outcome, overflow: Overflow | None, window: int) -> Sample | None:
    """What a report says of the estimator: nothing, after an error that is no overflow."""
    if call.counted is None or (outcome.error is not None and overflow is None):
        return None
    if overflow is None:
        return None if outcome.input_tokens is None else Sample(call.counted, outcome.input_tokens)
    if overflow.tokens is not None:
        return Sample(call.counted, overflow.tokens)
    return Sample(call.counted, overflow.room or window, least=True)


def _unnamed_window(known: Calibration, parent: Call | None, sample: Sample) -> Calibration:
    """Where the retry of a call that was refused without a number shows that this would have fit the window, had it
    been as large as it was thought to be: it is smaller than what the call was of."""
    outcome = None if parent is None else parent.outcome
    if parent is None or outcome is None or parent.counted is None or not sample.sensible:
        return known
    stated = (outcome.error or {}).get("overflow")
    if not isinstance(stated, Mapping) or stated.keys() & {"tokens", "window"}:
        return known
    asked, refused = int(parent.manifest["window"]), int(parent.counted * sample.ratio)
    if refused * (1 + calibration.MARGIN_LEAST) >= asked:
        return known
    return calibration.with_window(known, asked, refused)


def _reported(call: Call, outcome: Outcome) -> Reported | None:
    """What the view's next context is measured from: also where most of it did not come from here, such as tools."""
    if call.counted is None or outcome.input_tokens is None:
        return None
    sample = Sample(call.counted, outcome.input_tokens)
    if not sample.sensible and not sample.counted < sample.reported <= int(call.manifest["window"]):
        return None
    return Reported(call.call_id, call.epoch, call.head, outcome.input_tokens, call.counted)


def _off(call: Call, outcome: Outcome) -> float | None:
    if outcome.error is not None or not outcome.input_tokens:
        return None
    return abs(call.estimate - outcome.input_tokens) / outcome.input_tokens
