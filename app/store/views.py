"""Views: reads of one for a context, whole or since an earlier read; the list of its epochs; effects of redactions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from app.core.assembly.inputs import LoadedView, ViewRow
from app.core.log.event import Event
from app.core.plan.reducers.visibility import NewestDecision
from app.core.plan.state.context import NOTHING_UNREAD, Unread
from app.core.plan.state.frontier import START, Frontier, from_json, to_json
from app.core.plan.state.stubs import erase_quotes
from app.core.tokens.calibration import Reported
from app.store import calibrations, event_log, forks, layers, summaries, texts, view_reads, visibility
from app.store.engine import Connection, Database, Executor
from app.store.event_log import SessionLog
from app.store.ids import SessionRef, session_key
from app.store.rows import Row, columns, decode, decode_events, event

_AS_READ: Final = frozenset(
    {"session_id", "estimator", "created_at", "head", "real_head", "turn", "epoch", "epoch_head", "redactions"}
)
"""The columns of `view_reads.LOAD` that are fields of a LoadedView under the same names."""


async def load(
    connection: Executor,
    ref: SessionRef,
    view: str,
    *,
    at: int | None,
    fresh: bool,
    bound_tokens: int,
    model: str | None = None,
) -> LoadedView | None:
    """Load a view for its own model or for `model`; None if there is no such session.

    `at`: as of this earlier head. `fresh`: without its epoch. If more than `bound_tokens` (the estimator's) have been
    appended since the epoch's head, only the log's last `bound_tokens` are read, and older events that must stay.
    """
    epoch, anchors, pinned = (None, None, None) if at is None else await _as_of(connection, ref.session_id, view, at)
    row = await connection.fetchrow(
        view_reads.LOAD,
        **ref._asdict(),
        view=view,
        at=at,
        fresh=fresh,
        bound_tokens=bound_tokens,
        epoch=epoch,
        anchors=anchors,
        model=model,
        pinned=pinned,
    )
    if row is None:
        return None
    decided = tuple(map(visibility.decided, row["decided"]))
    frontier = from_json(texts.loads(row["frontier"])) if row["frontier"] else START
    events = await decode_events(row["events"])
    kept = tuple(one for one in events if one.seq < row["first"])
    older = await _read_older(connection, row, frontier, decided)
    unread_to = row["first"] - 1 if row["first"] > row["floor"] + 1 else 0
    found = await summaries.with_texts(connection, (*row["cover"], *row["folded"]))
    loaded = LoadedView(
        **_current_fields(row),
        **{column: row[column] for column in _AS_READ},
        frontier=frontier,
        events=(*kept, *older, *events[len(kept) :]),
        unread=Unread(unread_to, row["unread_tokens"] or 0, row["unread_turn"] or 0) if unread_to else NOTHING_UNREAD,
        cover=found[: len(row["cover"])],
        folded=found[len(row["cover"]) :],
        pinned=tuple(row["pinned"]),
        decided=decided,
        decisions=row["decisions"] if at is None else max((one.number for one in decided), default=0),
        layers=layers.listed(row["layers"]) if row["head"] == row["real_head"] else (),
    )
    return await _with_shared(connection, view, row, loaded, at, bound_tokens) if row["lineage_ids"] else loaded


async def _as_of(
    connection: Executor, session_id: UUID, view: str, at: int
) -> tuple[int, Sequence[int], Sequence[int]]:
    """Return a view's epoch, anchors and pinned seqs as of the head `at`."""
    log = await event_log.with_segments(connection, SessionLog(session_id))
    fork_state = await forks.as_of_head(connection, log, at) if log.shared else None
    row = await connection.fetchrow(
        view_reads.AS_OF, session_id=session_id, view=view, at=at, pinned=fork_state.pinned_seqs if fork_state else ()
    )
    epoch, pinned = (row["epoch"] or 0, row["pinned"]) if row else (0, [])
    anchors = fork_state.anchors if fork_state else row["anchors"] if row else ()
    return epoch, [*(seq for seq in anchors if seq), *pinned], pinned


async def _read_older(
    connection: Executor, row: Row, frontier: Frontier, decided: Sequence[NewestDecision]
) -> tuple[Event, ...]:
    """Read the part of a long tail that LOAD leaves out, page by page."""
    own = SessionLog(row["session_id"], shared=())
    pinned = frozenset(row["pinned"])
    shown = pinned.union(one.seq for one in decided if not one.hidden)
    bodiless = [stub.seq for stub in frontier.stubs if not stub.chars and stub.seq not in shown]
    found: list[Event] = []
    for first in range(row["first"], row["apart_to"] + 1, view_reads.EVENTS_PER_READ):
        last = min(first + view_reads.EVENTS_PER_READ - 1, row["apart_to"])
        events = await event_log.events(connection, own, first, last, bodiless=bodiless)
        found += [replace(one, pinned=one.seq in pinned) for one in events]
    return tuple(found)


async def _with_shared(
    connection: Executor, view: str, row: Row, loaded: LoadedView, at: int | None, bound_tokens: int
) -> LoadedView:
    """Return a fork's loaded view with the events, decisions and last call that it shares with its ancestors."""
    frontier, session_id = loaded.frontier, loaded.session_id
    shared_to = min(row["lineage_to"][-1], loaded.head)
    decided: tuple[NewestDecision, ...] = ()
    if row["decisions"]:
        decided = await visibility.until(connection, session_id, loaded.head, shared_to)
    shown = {*loaded.pinned, *(one.seq for one in decided if not one.hidden)}
    anchors = [seq for seq in row["anchors"] if seq]
    if at is None and row["system_seq"]:
        anchors += await event_log.prompts(connection, event_log.log_of(row), row["system_seq"])
    tail = await forks.ancestor_part(
        connection,
        row,
        bound_tokens=bound_tokens,
        kept=frontier.kept,
        anchors=anchors,
        pinned=loaded.pinned if at is None else (),
        bodiless=[stub.seq for stub in frontier.stubs if not stub.chars and stub.seq not in shown],
    )
    read = {one.seq for one in tail.events}
    decided = (*(one for one in decided if one.seq in read), *loaded.decided)
    loaded = replace(
        loaded,
        turn=tail.turn,
        events=(*(replace(one, pinned=one.seq in loaded.pinned) for one in tail.events), *loaded.events),
        unread=tail.unread,
        decided=decided,
        decisions=loaded.decisions if at is None else max((one.number for one in decided), default=0),
    )
    if loaded.used_at is None and 0 < loaded.epoch_head <= shared_to:
        loaded = await _with_parents_call(connection, view, row, loaded)
    return loaded


async def _with_parents_call(connection: Executor, view: str, row: Row, loaded: LoadedView) -> LoadedView:
    """Return the view with its parent's last call in the epoch they share, whose prefix the provider has cached."""
    parent = session_key(row["tenant_id"], row["parent"])
    last = await connection.fetchrow(
        view_reads.LAST_CALL, session_id=parent, view=view, epoch=loaded.epoch, head=row["lineage_to"][-1]
    )
    if last is None:
        return loaded
    return replace(loaded, last_breakpoints=tuple(last["breakpoints"]), used_at=last["used_at"])


async def refresh(
    connection: Executor, tenant_id: UUID, view: str, held: LoadedView, model: str | None = None
) -> LoadedView | None:
    """Return a held view brought up to date; None if it must be loaded again."""
    row = await connection.fetchrow(
        view_reads.CHANGES,
        session_id=held.session_id,
        tenant_id=tenant_id,
        view=view,
        head=held.head,
        epoch=held.epoch,
        created_at=held.created_at,
        most=view_reads.ADDED_EVENTS_MAX,
        model=model,
        decisions=held.decisions,
    )
    if row is None:
        return None
    added = tuple(event(record) for record in row["events"])
    cover = await summaries.with_texts(connection, row["cover"], (*held.cover, *held.folded))
    return replace(
        held,
        **_current_fields(row),
        head=row["head"],
        real_head=row["head"],
        turn=added[-1].turn if added else held.turn,
        events=held.events + added,
        cover=cover,
        finer=held.finer if cover == held.cover else None,
        layers=layers.listed(row["layers"], held.layers),
    )


_OF_ROW: Final = (
    *("version", "outside_tokens", "used_at", "compaction", "requested_to", "requested_error", "learned_version"),
)
"""Columns of both statements that have the names of fields."""


def _current_fields(row: Row) -> dict[str, Any]:
    """Return the fields of a LoadedView that both statements read: those of the session, its view and the model."""
    return {
        **{name: row[name] for name in _OF_ROW},
        "session_model": row["model"],
        "session_policy": (row["policy_name"], row["policy_version"]),
        "log_tokens": row["all_tokens"],
        "view": settings(row),
        "last_breakpoints": tuple(row["breakpoints"] or ()),
        "calibrations": tuple(map(calibrations.calibration, row["calibrations"])),
        "reported": reported(row),
        "learned": calibrations.learned(row["learned"]),
        "moved_to": row["line"],
    }


def reported(row: Row) -> Reported | None:
    """Return the reported usage of a view's last call, from its row; None if none was reported."""
    if row["reported_call"] is None:
        return None
    figures = (row["reported_epoch"], row["reported_head"], row["reported_tokens"], row["reported_counted"])
    return Reported(row["reported_call"], *figures, row["reported_outside"])


def settings(row: Row) -> ViewRow | None:
    """Return a view's settings and epoch from its row; None if there is no such view."""
    if row["window_tokens"] is None:
        return None
    policy = (row["view_policy_name"], row["view_policy_version"])
    return ViewRow(policy, row["view_model"], row["window_tokens"], row["view_epoch"], row["epochs"], row["afresh"])


LEGIBLE_IN_FRONTIER: Final = ("folds", "system_seq", "tools_seq")
"""Members of a frontier that statements read; they hold no content."""


@dataclass(frozen=True, slots=True)
class ListedEpoch:
    """One epoch of a view, without its frontier."""

    epoch: int
    head: int
    cause: str
    tokens_before: int
    tokens_after: int
    created_at: datetime


async def page_of_epochs(database: Database, session_id: UUID, view: str, after: int, limit: int) -> list[ListedEpoch]:
    """Return the epochs of a view after number `after`, in order."""
    rows = await database.fetch(
        f"SELECT {columns(ListedEpoch)} FROM epochs "
        "WHERE session_id = :session_id AND view = :view AND epoch > :after ORDER BY epoch LIMIT :limit",
        session_id=session_id,
        view=view,
        after=after,
        limit=limit,
    )
    return [decode(ListedEpoch, row) for row in rows]


@dataclass(frozen=True, slots=True)
class CurrentEpoch:
    """A view's policy, and its current epoch with its frontier."""

    policy: tuple[str, int]
    epoch: int
    frontier: Frontier


async def current_epoch(database: Database, session_id: UUID, view: str) -> CurrentEpoch | None:
    """Return a view's policy and current epoch; None for a view without a context yet."""
    row = await database.fetchrow(
        "SELECT v.policy_name, v.policy_version, v.epoch, e.frontier FROM views v "
        "LEFT JOIN epochs e ON e.session_id = v.session_id AND e.view = v.view AND e.epoch = v.epoch "
        "WHERE v.session_id = :session_id AND v.view = :view",
        session_id=session_id,
        view=view,
    )
    if row is None:
        return None
    frontier = from_json(texts.loads(row["frontier"])) if row["frontier"] else START
    return decode(CurrentEpoch, row, frontier=frontier)


async def reset_plans(tx: Connection, session_id: UUID) -> None:
    """Have all views of a session planned from scratch, by moving each to a number that no epoch gets."""
    await tx.execute(
        "UPDATE views SET carry_tokens = 0, epoch = epochs + 1, epochs = epochs + 1, afresh = 'redaction' "
        "WHERE session_id = :session_id",
        session_id=session_id,
    )


async def redact_quotes(tx: Connection, session_id: UUID, seq: int) -> None:
    """Erase the quotes of an event from the session's epochs. The transaction must be a redaction of this session."""
    rows = await tx.fetch(
        "SELECT view, epoch, frontier FROM epochs WHERE session_id = :session_id AND (frontier::jsonb "
        "@> jsonb_build_object('stubs', jsonb_build_array(jsonb_build_object('seq', :seq::bigint))) "
        "OR frontier::jsonb #> '{left_out,files}' @> jsonb_build_array(jsonb_build_array(:seq::bigint)) "
        "OR starts_with(frontier::text, :sealed))",
        session_id=session_id,
        seq=seq,
        sealed=texts.SEALED_JSON,
    )
    for row in rows:
        frontier = to_json(erase_quotes(from_json(texts.loads(row["frontier"])), seq))
        await tx.execute(
            "UPDATE epochs SET frontier = :frontier::json "
            "WHERE session_id = :session_id AND view = :view AND epoch = :epoch",
            session_id=session_id,
            view=row["view"],
            epoch=row["epoch"],
            frontier=texts.dumps(frontier, clear=LEGIBLE_IN_FRONTIER),
        )
