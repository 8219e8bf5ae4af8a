"""Records of calls, their costs, and summaries."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from palimpsest._request import Listing, Request, path
from palimpsest.types import (
    AuditLedgerOut,
    CallBlockOut,
    CallItem,
    CompactionRun,
    ContextAgain,
    CoverageOut,
    DiffOut,
    HistoryItem,
    LedgerOut,
    Manifest,
    NextEvictionsOut,
    SummaryOut,
    SummaryWhole,
)

RunState = Literal["scheduled", "running", "succeeded", "skipped", "failed"]


def list_calls(
    session: str, *, view: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Listing[CallItem]:
    """List the recorded calls of the session, newest first. Every context that was returned is recorded."""
    query = {"view": view, "limit": limit, "cursor": cursor}
    return Listing("GET", path("sessions", session, "calls"), CallItem, query)


def get_call(
    session: str, call_id: str, *, dispositions: bool | None = None, declined: bool | None = None
) -> Request[Manifest]:
    """Get the record of a call: everything its context was made from, and how it showed every event."""
    query = {"dispositions": dispositions, "declined": declined}
    return Request("GET", path("sessions", session, "calls", call_id), Manifest, query)


def get_call_context(session: str, call_id: str) -> Request[ContextAgain]:
    """Render a recorded call again, to the same bytes as when it was made."""
    return Request("GET", path("sessions", session, "calls", call_id, "context"), ContextAgain)


def list_call_blocks(
    session: str, call_id: str, *, text: int | None = None, limit: int | None = None, cursor: str | None = None
) -> Listing[CallBlockOut]:
    """List the blocks of a call's request as the model saw them, in order: at most `text` characters of each."""
    query = {"text": text, "limit": limit, "cursor": cursor}
    return Listing("GET", path("sessions", session, "calls", call_id, "blocks"), CallBlockOut, query)


def get_call_block(session: str, call_id: str, index: int) -> Request[CallBlockOut]:
    """Get one block of a call's request, with all of its text."""
    return Request("GET", path("sessions", session, "calls", call_id, "blocks", index), CallBlockOut)


def diff_calls(session: str, call_id: str, other_id: str) -> Request[DiffOut]:
    """Compare two calls: the events that the second shows differently, the reasons, and the tokens."""
    return Request("GET", path("sessions", session, "calls", call_id, "diff", other_id), DiffOut)


def get_event_history(
    session: str, seq: int, *, view: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Listing[HistoryItem]:
    """List how each call since an event was logged has shown it to the model, oldest first, and why."""
    query = {"view": view, "limit": limit, "cursor": cursor}
    return Listing("GET", path("sessions", session, "events", seq, "history"), HistoryItem, query)


def get_next_evictions(session: str, *, view: str | None = None, limit: int | None = None) -> Request[NextEvictionsOut]:
    """Get the next events that a view would leave out, and the reasons why it does not leave them out yet."""
    return Request("GET", path("sessions", session, "next-evictions"), NextEvictionsOut, {"view": view, "limit": limit})


def get_ledger(
    session: str,
    *,
    view: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
    newest: int | None = None,
) -> Request[LedgerOut]:
    """Get the ledger of a view: the cost of each call, newest first, cost and gain of each epoch, and the totals."""
    query = {"view": view, "limit": limit, "cursor": cursor, "newest": newest}
    return Request("GET", path("sessions", session, "ledger"), LedgerOut, query)


def get_coverage(session: str, *, view: str | None = None) -> Request[CoverageOut]:
    """Prove that a view accounts for every event of the log exactly once, and say how each is shown."""
    return Request("GET", path("sessions", session, "coverage"), CoverageOut, {"view": view})


def list_summaries(
    session: str, *, live: bool | None = None, limit: int | None = None, cursor: str | None = None
) -> Listing[SummaryOut]:
    """List the summaries of the session, oldest first."""
    query = {"live": live, "limit": limit, "cursor": cursor}
    return Listing("GET", path("sessions", session, "summaries"), SummaryOut, query)


def get_summary(session: str, summary_id: str) -> Request[SummaryWhole]:
    """Get a summary with its text, its digest and its lineage."""
    return Request("GET", path("sessions", session, "summaries", summary_id), SummaryWhole)


def compact(session: str, *, focus: str | None = None, wait_ms: int | None = None) -> Request[CompactionRun]:
    """Request a compaction: the older part of the log is summarized now, however small it is."""
    body = {"focus": focus, "wait_ms": wait_ms}
    return Request("POST", path("sessions", session, "compactions"), CompactionRun, body=body)


def list_compactions(
    session: str, *, state: RunState | None = None, limit: int | None = None, cursor: str | None = None
) -> Listing[CompactionRun]:
    """List the compaction runs of the session, newest first, failed ones with their error."""
    query = {"state": state, "limit": limit, "cursor": cursor}
    return Listing("GET", path("sessions", session, "compactions"), CompactionRun, query)


def get_compaction(session: str, compaction_id: str) -> Request[CompactionRun]:
    """Get a compaction run."""
    return Request("GET", path("sessions", session, "compactions", compaction_id), CompactionRun)


def retry_compaction(session: str, compaction_id: str) -> Request[CompactionRun]:
    """Schedule a failed or skipped compaction run again."""
    return Request("POST", path("sessions", session, "compactions", compaction_id) + ":retry", CompactionRun)


def audit_calls(
    *,
    session: str | None = None,
    model: str | None = None,
    since: str | datetime | None = None,
    until: str | datetime | None = None,
    summary: str | None = None,
    evicted_seq: int | None = None,
    overflow: bool | None = None,
    min_evicted_tokens: int | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Listing[CallItem]:
    """Search recorded calls across sessions, newest first; all conditions must hold."""
    query = {
        "session": session,
        "model": model,
        "since": since,
        "until": until,
        "summary": summary,
        "evicted_seq": evicted_seq,
        "overflow": overflow,
        "min_evicted_tokens": min_evicted_tokens,
        "limit": limit,
        "cursor": cursor,
    }
    return Listing("GET", path("audit", "calls"), CallItem, query)


def get_audit_ledger(
    *, since: str | datetime, until: str | datetime | None = None, model: str | None = None
) -> Request[AuditLedgerOut]:
    """Get the token usage and price of the calls of all sessions that the key can access, by model."""
    return Request("GET", path("audit", "ledger"), AuditLedgerOut, {"since": since, "until": until, "model": model})
