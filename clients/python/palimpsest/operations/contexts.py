"""Contexts, and the outcomes of calls."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from palimpsest._request import Request, path
from palimpsest.operations.names import AppendIn, Content, Format, Message
from palimpsest.types import (
    ContextOut,
    ErrorIn,
    InjectionIn,
    OutcomeOut,
    PolicyDocument,
    PreviewOut,
    StepOutcomeIn,
    UsageIn,
    WarmingOut,
    WarmingRequest,
)


def get_context(
    session: str,
    *,
    view: str | None = None,
    format: Format | None = None,
    model: str | None = None,
    max_tokens: int | None = None,
    at: int | None = None,
    outside_tokens: int | None = None,
    recall: bool | None = None,
    wait_ms: int | None = None,
) -> Request[ContextOut]:
    """Get the context of the next model call: a request within the budget that the provider accepts unchanged."""
    query = {
        "view": view,
        "format": format,
        "model": model,
        "max_tokens": max_tokens,
        "at": at,
        "outside_tokens": outside_tokens,
        "recall": recall,
        "wait_ms": wait_ms,
    }
    return Request("GET", path("sessions", session, "context"), ContextOut, query)


def post_context(
    session: str,
    *,
    view: str | None = None,
    format: Format | None = None,
    model: str | None = None,
    max_tokens: int | None = None,
    at: int | None = None,
    outside_tokens: int | None = None,
    recall: bool | None = None,
    wait_ms: int | None = None,
    observe: bool | None = None,
    holdout: float | None = None,
    policy: str | PolicyDocument | None = None,
    force: bool | None = None,
    cache_last: bool | None = None,
    now: str | datetime | None = None,
    injections: Sequence[InjectionIn] | None = None,
    retry_of: str | None = None,
    messages: Sequence[Message] | None = None,
    system: Content | None = None,
    tools: Sequence[Message] | None = None,
    append: AppendIn | None = None,
    outcome: StepOutcomeIn | None = None,
    idempotency_key: str | None = None,
) -> Request[ContextOut]:
    """Get the context of the next model call, with options that need a body.

    With `messages`, the client's complete list in `format` (and its `system` and `tools` if the format has them
    separately), the log is updated first: new messages are appended, an edited history becomes a line of its own. The
    response then has a plan for each message: keep, replace or drop.

    `outcome`, of an earlier call, and `append`, the events or messages since then, make this a step in one request:
    the outcome is reported, the events are appended, and the context is made. If a part fails, the error's `part` names
    it; if that is `context`, the append stays made and is in the error's `appended`.
    """
    body: dict[str, Any] = {
        "view": view,
        "format": format,
        "model": model,
        "max_tokens": max_tokens,
        "at": at,
        "outside_tokens": outside_tokens,
        "recall": recall,
        "wait_ms": wait_ms,
        "observe": observe,
        "holdout": holdout,
        "policy": policy,
        "force": force,
        "cache_last": cache_last,
        "now": now,
        "injections": injections,
        "retry_of": retry_of,
        "messages": messages,
        "system": system,
        "tools": tools,
        "append": append,
        "outcome": outcome,
    }
    return Request("POST", path("sessions", session, "context"), ContextOut, None, body, idempotency_key)


def preview_context(
    session: str,
    *,
    view: str | None = None,
    format: Format | None = None,
    model: str | None = None,
    max_tokens: int | None = None,
    at: int | None = None,
    outside_tokens: int | None = None,
    recall: bool | None = None,
    wait_ms: int | None = None,
    observe: bool | None = None,
    holdout: float | None = None,
    policy: str | PolicyDocument | None = None,
    force: bool | None = None,
    cache_last: bool | None = None,
    now: str | datetime | None = None,
    injections: Sequence[InjectionIn] | None = None,
    retry_of: str | None = None,
    messages: Sequence[Message] | None = None,
    system: Content | None = None,
    tools: Sequence[Message] | None = None,
    diff_with: str | None = None,
) -> Request[PreviewOut]:
    """Preview the context of the next call with any policy, model, budget or head. Nothing is recorded or changed."""
    asked = post_context(
        session,
        view=view,
        format=format,
        model=model,
        max_tokens=max_tokens,
        at=at,
        outside_tokens=outside_tokens,
        recall=recall,
        wait_ms=wait_ms,
        observe=observe,
        holdout=holdout,
        policy=policy,
        force=force,
        cache_last=cache_last,
        now=now,
        injections=injections,
        retry_of=retry_of,
        messages=messages,
        system=system,
        tools=tools,
    )
    return Request("POST", asked.path + ":preview", PreviewOut, {"diff_with": diff_with}, asked.body)


def report_outcome(
    session: str,
    call_id: str,
    *,
    usage: UsageIn | None = None,
    latency_ms: int | None = None,
    error: ErrorIn | None = None,
    idempotency_key: str | None = None,
) -> Request[OutcomeOut]:
    """Report the outcome of a call: its token usage, its duration, or its error. The response says what to do next."""
    body = {"usage": usage, "latency_ms": latency_ms, "error": error}
    outcome = path("sessions", session, "calls", call_id, "outcome")
    return Request("POST", outcome, OutcomeOut, None, body, idempotency_key)


def warm_context(session: str, *, view: str | None = None) -> Request[WarmingRequest]:
    """Get the request that keeps the provider's cache of a view's last call; report its usage as a warming."""
    return Request("POST", path("sessions", session) + "/context:warm", WarmingRequest, body={"view": view})


def report_warming(
    session: str, call_id: str, *, usage: UsageIn | None = None, idempotency_key: str | None = None
) -> Request[WarmingOut]:
    """Report a request that kept the provider's cache of a call; without `usage` it failed."""
    warmings = path("sessions", session, "calls", call_id, "warmings")
    return Request("POST", warmings, WarmingOut, None, {"usage": usage}, idempotency_key)
