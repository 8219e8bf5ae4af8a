"""Measurements of a report: the outcome, a point for the estimator, the window that an error states or a retry implies.
Also the state of a view and a model that have learned from them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

from app.core import dataclass, replace
from app.core.assembly.budget import budget_of, real_window
from app.core.assembly.inputs import BudgetFacts, ContextRequest, Retry, ViewSettings
from app.core.errors import CannotFit, InvalidPolicy, InvalidRequest
from app.core.log.events import Json
from app.core.policy.overflow import MESSAGE_CHARS_MAX, Overflow, classify
from app.core.policy.policy import Policy
from app.core.record.evictions import input_if_sent
from app.core.render.formats import FORMATS
from app.core.tokens import calibration
from app.core.tokens.budget import Budget
from app.core.tokens.calibration import (
    Calibration,
    Claim,
    Reported,
    Sample,
    accepted_lately,
    believable,
    consistent,
    with_accepted,
    with_claim,
)
from app.core.tokens.counter import Counter
from app.core.tokens.learned import Learned, Point, with_point
from app.store.audit import CallRow
from app.store.calibrations import CalibrationSamples
from app.store.reports import ReportedOutcome


class Lessons(NamedTuple):
    """The calibration of the call's model (`shared`), and the state that its view has learned (`own`, at `version`).

    `shared` is None if the call names no model, `own` if nothing was learned about the view.
    """

    shared: Calibration | None
    own: Learned | None
    version: int


@dataclass(frozen=True, slots=True)
class Report:
    """A report as received: the provider's figures, and its error if there was one."""

    usage: Mapping[str, int | None] | None = None
    latency_ms: int | None = None
    error: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class CacheReads:
    """The expected and actual reads of a call from its provider's cache, and its whole input, in the provider's tokens.
    `profile` is the model's row in the table of caches."""

    profile: str
    expected: int
    actual: int
    input: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """A call with its outcome. `wait_ms`: time its retry may wait for a summary; None if the policy writes none.

    `overflow` is the matched pattern, `estimate_error` the estimate's error as a share of the reported tokens, `cache`
    the reads from the provider's cache, if reported and measured. All three are None for a repeated report.
    """

    call: CallRow
    outcome: ReportedOutcome
    wait_ms: int | None
    overflow: Overflow | None = None
    estimate_error: float | None = None
    cache: CacheReads | None = None


def outcome_of(report: Report, call: CallRow, policy: Policy) -> tuple[ReportedOutcome, Overflow | None]:
    """Return the outcome to store, and the overflow that its error shows. Raises InvalidRequest for an empty report."""
    usage = {name: value for name, value in (report.usage or {}).items() if value is not None}
    if not usage and report.error is None and report.latency_ms is None:
        raise InvalidRequest("the report has neither usage nor an error nor a latency", field="usage")
    total = usage.get("input_tokens")
    read, write = usage.get("cache_read_tokens"), usage.get("cache_write_tokens")
    if total is not None and FORMATS[call.format].excludes_cached_tokens:
        total += (read or 0) + (write or 0)
    error, overflow = None, None
    if report.error is not None:
        given = {name: value for name, value in report.error.items() if value is not None}
        if isinstance(message := given.get("message"), str):
            given["message"] = message[:MESSAGE_CHARS_MAX]
        message, code, status = (given.get(name) for name in ("message", "code", "status"))
        number = status if isinstance(status, int) else None
        overflow = classify(_text(message), _text(code), policy.overflow.patterns, number)
        found = {} if overflow is None else {name: value for name, value in asdict(overflow).items() if value}
        error = given if overflow is None else {**given, "overflow": found}
    figures = (total, read, write, usage.get("output_tokens"), report.latency_ms)
    return ReportedOutcome(*figures, error, overflow is not None), overflow


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def outcome_if_sent(call: CallRow, outcome: ReportedOutcome) -> ReportedOutcome | None:
    """Estimate the outcome that a call's context would have had, from that of the whole log, which was sent instead.

    Its input is the context's estimated share of the log's. None after an error, or if no input was reported.
    """
    if outcome.error is not None or outcome.input_tokens is None:
        return None
    outside = call.manifest.stated_outside or 0
    expected = input_if_sent(outcome.input_tokens, outside, call.estimate, call.evicted_tokens)
    return replace(outcome, input_tokens=expected, cache_read_tokens=None, cache_write_tokens=None)


def same_report(before: ReportedOutcome, now: ReportedOutcome) -> bool:
    """Compare two outcomes, apart from the overflow found in them."""
    reports = [{k: v for k, v in (one.error or {}).items() if k != "overflow"} for one in (before, now)]
    figures = [replace(one, error=None, overflow=False) for one in (before, now)]
    return reports[0] == reports[1] and figures[0] == figures[1]


def point_of(call: CallRow, outcome: ReportedOutcome, overflow: Overflow | None, now: float) -> Point | None:
    """Return a report's measurement of the estimator; None after an error other than an overflow.

    The point's `reported` is 0 if not even the most pessimistic ratio explains the refusal.
    """
    if not call.has_count or (outcome.error is not None and overflow is None):
        return None
    outside = call.manifest.stated_outside
    if overflow is None:
        return None if outcome.input_tokens is None else Point(call.counted, outcome.input_tokens, outside, at=now)
    if overflow.tokens is not None:
        return Point(call.counted, overflow.tokens, outside, at=now)
    window_tokens, room = call.manifest.window, overflow.room
    if room is None or not believable(room, window_tokens, call.counted, 0):
        room = window_tokens
    explains = room <= calibration.PESSIMIST * call.counted
    return Point(call.counted, room if explains else 0, outside, least=True, at=now)


def usage_of(call: CallRow, outcome: ReportedOutcome) -> Reported | None:
    """Return the usage that the view's next estimate starts from; None after an error or without a plausible count."""
    if not call.has_count or outcome.input_tokens is None or outcome.error is not None:
        return None
    if not is_sane(Point(call.counted, outcome.input_tokens), call):
        return None
    outside = call.manifest.stated_outside
    return Reported(call.call_id, call.epoch, call.head, outcome.input_tokens, call.counted, outside)


def estimate_error(call: CallRow, outcome: ReportedOutcome) -> float | None:
    """Return the estimate's error as a share of the reported tokens; None after an error or if none are reported."""
    if outcome.error is not None or not outcome.input_tokens:
        return None
    expected = call.estimate + call.manifest.outside
    return abs(expected - outcome.input_tokens) / outcome.input_tokens


def is_sane(point: Point, call: CallRow) -> bool:
    """Return whether a reported count is plausible for a call; most of it may be outside the request, such as tools."""
    sample = Sample(point.counted, point.reported)
    return sample.sensible or sample.counted < sample.reported <= call.manifest.window


def claim_of(
    call: CallRow, parent: CallRow | None, point: Point, overflow: Overflow | None, source: str
) -> Claim | None:
    """Return the window that an overflow states, or that the retry of an overflow without figures implies."""
    if overflow is None:
        return _implied_claim(parent, point, source)
    window = overflow.window_with(call.manifest.reserve)
    return None if window is None else Claim(call.manifest.window, window, source, point.at)


def _implied_claim(parent: CallRow | None, point: Point, source: str) -> Claim | None:
    """Return the window that a retry implies, after a call that was refused without figures.

    That call, by the retry's ratio, would have fit the window it was planned for, so the real window must be smaller.
    """
    outcome = None if parent is None else parent.outcome
    sample = Sample(point.counted, point.reported)
    if parent is None or outcome is None or not parent.has_count or not sample.sensible:
        return None
    stated = (outcome.error or {}).get("overflow")
    if not isinstance(stated, Mapping) or stated.keys() & {"tokens", "window"}:
        return None
    window_tokens, refused = parent.manifest.window, int(parent.counted * sample.ratio)
    if refused * (1 + calibration.MARGIN_LEAST) >= window_tokens:
        return None
    return Claim(window_tokens, refused, source, point.at)


def is_believable(
    claim: Claim, point: Point, overflow: Overflow | None, known: Sequence[Calibration | None], now: float
) -> bool:
    """Return whether a claimed window is plausible, by its size and by the calls that were accepted."""
    accepted = max((accepted_lately(one, now) for one in known if one is not None), default=0)
    sent = None if overflow is None or overflow.tokens is None else overflow.tokens + overflow.answer
    return believable(claim.window, claim.asked, point.counted, accepted, sent)


def with_window_evidence(
    known: Calibration, claim: Claim | None, point: Point, overflow: Overflow | None, *, believed: bool
) -> Calibration:
    """Add a report's evidence about the window to a calibration.

    A view believes its own reports; a model's claim must be confirmed, by the call's expected tokens or another
    session.
    """
    if overflow is None:
        known = with_accepted(known, point.reported, point.at)
    return known if claim is None else with_claim(known, claim, believed=believed)


def own_lessons(
    before: Learned, call: CallRow, point: Point, claim: Claim | None, overflow: Overflow | None, margin: float
) -> Learned:
    """Return the state of a call's view after its report; `margin` is the estimator's own."""
    own = with_point(before, point, margin) if is_sane(point, call) else before
    return replace(own, known=with_window_evidence(own.known, claim, point, overflow, believed=True))


def shared_lessons(
    taken: CalibrationSamples,
    before: Learned,
    own: Learned,
    point: Point,
    claim: Claim | None,
    overflow: Overflow | None,
    margin: float,
    source: str,
) -> CalibrationSamples:
    """Return a model's calibration after the report that changed a view's state from `before` to `own`."""
    outside = own.tokens_outside(point)
    sample = Sample(point.counted, point.reported - outside, point.least, point.at, source)
    if own.outside != before.outside:  # from now on this session's samples exclude these tokens
        samples = (*(one for one in taken.samples if one.source != source), *own.samples(source))
        samples = samples[-calibration.SAMPLES_MAX :]
    else:
        samples = calibration.with_sample(taken.samples, sample)
    known = calibration.relearn(taken.known, samples, margin, point.at)
    if sample.sensible and not sample.least:
        known = replace(known, reports=known.reports + 1)
    expected = point.counted * known.ratio + outside
    sent = None if overflow is None else overflow.tokens
    borne_out = claim is not None and overflow is not None and consistent(claim.window, expected, sent)
    known = with_window_evidence(known, claim, point, overflow, believed=borne_out)
    return taken.relearned(known, samples)


def budget_after(
    policy: Policy,
    call: CallRow,
    lessons: Lessons,
    reported: Reported | None,
    counter: Counter,
    retry: Retry | None = None,
) -> Budget | None:
    """Return the budget of a call's view, or of its retry, updated by its report; None if nothing fits."""
    window = call.manifest.window
    view = BudgetFacts(
        epoch=call.epoch,
        calibrations=() if lessons.shared is None else (lessons.shared,),
        reported=reported,
        learned=lessons.own,
    )
    if retry is not None:
        window = real_window(view, call.model, window, time.time())
    settings = ViewSettings(call.policy, policy, call.model, window)
    request = ContextRequest(call.view, outside_tokens=call.manifest.stated_outside, retry=retry)
    try:
        return budget_of(view, settings, request, counter, (), ignores_epoch=False)
    except (CannotFit, InvalidPolicy):
        return None
