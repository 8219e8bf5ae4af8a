"""The record of calls and of the epochs they open: one statement for each call."""

from typing import Final
from uuid import UUID

import asyncpg

from app.core.log.events import canonical_json
from app.core.plan.context.frontier import to_json
from app.core.render.formats import FORMATS
from app.core.view.loaded import LoadedView
from app.core.view.record import NewCall, NewEpoch
from app.store import texts
from app.store.engine import Database
from app.store.views import COMPACTION_NOW

_CALL_COLUMNS: Final = """
    session_id, tenant_id, call_id, view, head, epoch, policy_name, policy_version, format, model, render_version,
    manifest, breakpoints, estimate, target, sha256, counted, evicted_tokens, evicted_class, expires_at, retry_of"""
# The values behind the first six, from the seventh argument on.
_CALL_VALUES: Final = """
    $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, now() + make_interval(days => $20), $21"""


# A call has no foreign key to its session. Whoever erases that deletes its row before its calls: so none is added to a
# session that is gone, or that was begun anew under the name ($22: the session's creation).
_RECORD_CALL: Final = f"""
INSERT INTO model_calls ({_CALL_COLUMNS}) SELECT $1, $2, $3, $4, $5, $6, {_CALL_VALUES}
FROM sessions WHERE session_id = $1 AND tenant_id = $2 AND created_at = $22 FOR KEY SHARE
RETURNING call_id
"""

# The same for a context made of what an earlier read ($22: the session's creation, $23: its model, $24: the breakpoints
# of the view's last call, $26: the version of what its own calls have taught, $27: that of the calibration by $28, the
# estimator, $29: how many decisions the session had seen, $30: the version of its layers, $31: what it says is sent
# beside the request) left behind: only if that is still how the view stands.
_RECORD_CALL_IF_SO: Final = f"""
INSERT INTO model_calls ({_CALL_COLUMNS})
SELECT $1, $2, $3, $4, $5, $6, {_CALL_VALUES}
FROM sessions s JOIN views v ON v.session_id = s.session_id AND v.view = $4
WHERE s.session_id = $1 AND s.tenant_id = $2 AND s.head = $5 AND v.epoch = $6 AND s.created_at = $22
  AND s.decisions = $29 AND s.layers_version = $30 AND s.model IS NOT DISTINCT FROM $23
  AND v.learned_version = $26 AND s.outside_tokens IS NOT DISTINCT FROM $31
  AND $27 = coalesce((SELECT c.version FROM calibrations c WHERE c.tenant_id = $2 AND c.model = $10
        AND c.estimator = $28), 0)
  AND ($24::bigint[] IS NULL OR $24 = coalesce((SELECT breakpoints FROM model_calls m WHERE m.session_id = $1
        AND m.view = $4 AND m.epoch = $6 ORDER BY m.call_id DESC LIMIT 1), '{{}}'))
FOR KEY SHARE OF s
RETURNING CASE WHEN $25::boolean THEN ({COMPACTION_NOW}) ELSE 'none' END AS compaction
"""

# An epoch is opened only on top of the one its plan started from; else nothing is written and the plan is made again.
# $22: the session's creation. $23 on: the view's policy, model and window, its target and carried tokens, the epoch's
# cause, frontier and tokens before and after, whether it is the current one, and what of its frontier a read needs.
_RECORD_EPOCH: Final = f"""
WITH there AS (
    SELECT FROM sessions WHERE session_id = $1 AND tenant_id = $2 AND created_at = $22 FOR KEY SHARE
), moved AS (
    INSERT INTO views (session_id, tenant_id, view, policy_name, policy_version, model, window_tokens, epoch, epochs,
                       target, carry_tokens)
    SELECT $1, $2, $4, $23, $24, $25, $26, CASE WHEN $33 THEN $6 ELSE 0 END, $6, $27, $28 FROM there
    ON CONFLICT (session_id, view) DO UPDATE SET epochs = excluded.epochs,
        policy_name = CASE WHEN $33 THEN excluded.policy_name ELSE views.policy_name END,
        policy_version = CASE WHEN $33 THEN excluded.policy_version ELSE views.policy_version END,
        model = CASE WHEN $33 THEN excluded.model ELSE views.model END,
        window_tokens = CASE WHEN $33 THEN excluded.window_tokens ELSE views.window_tokens END,
        target = CASE WHEN $33 THEN excluded.target ELSE views.target END,
        carry_tokens = CASE WHEN $33 THEN excluded.carry_tokens ELSE views.carry_tokens END,
        epoch = CASE WHEN $33 THEN excluded.epoch ELSE views.epoch END,
        afresh = CASE WHEN $33 THEN NULL ELSE views.afresh END
    WHERE views.epochs = $6 - 1
    RETURNING view
), opened AS (
    INSERT INTO epochs (session_id, tenant_id, view, epoch, head, cause, frontier, tokens_before, tokens_after, floor,
                        kept, stubbed, folded, evictions, evicted, changed_seq, stable_tokens)
    SELECT $1, $2, $4, $6, $5, $29, $30, $31, $32, $34, $35, $36, $37::uuid[], $38, $39, $40, $41 FROM moved
), called AS (
    INSERT INTO model_calls ({_CALL_COLUMNS}) SELECT $1, $2, $3, $4, $5, $6, {_CALL_VALUES} FROM moved
)
SELECT view FROM moved
"""


async def record(
    database: Database, tenant_id: UUID, call: NewCall, epoch: NewEpoch | None, loaded: LoadedView
) -> bool:
    """Store the call of what was `loaded`, and the epoch it opened.

    False, and nothing stored, when another was opened meanwhile or the session is no longer there.
    """
    whose = (loaded.session_id, tenant_id, call.call_id, call.view, call.head)
    if epoch is None:
        row = await database.fetchrow(_RECORD_CALL, *whose, call.epoch, *_values(call), loaded.created_at)
        return row is not None
    settings = epoch.settings
    row = await database.fetchrow(
        _RECORD_EPOCH,
        *whose,
        epoch.epoch,
        *_values(call),
        loaded.created_at,
        *settings.policy,
        settings.model,
        settings.window_tokens,
        epoch.target,
        epoch.carry_tokens,
        epoch.cause,
        texts.dumps(to_json(epoch.frontier)),
        epoch.tokens_before,
        epoch.tokens_after,
        epoch.current,
        epoch.frontier.floor,
        list(epoch.frontier.kept),
        [stub.seq for stub in epoch.frontier.stubs if not stub.chars],
        [fold.id for fold in epoch.frontier.folds],
        canonical_json(epoch.evictions),
        [asyncpg.Range(first, last + 1) for first, last in epoch.evicted],
        epoch.changed_seq,
        epoch.stable_tokens,
    )
    return row is not None


async def record_if_so(
    database: Database, tenant_id: UUID, call: NewCall, held: LoadedView, estimator: str
) -> str | None:
    """Store the call if the view still stands as it is held.

    Return whether summaries are being written (`LoadedView.compaction`). That is looked up only if they were when it
    was last looked at, or have been asked for since by an append here.
    None, and nothing stored, when the view does not stand so.
    """
    last = list(held.last_breakpoints) if FORMATS[call.format].marked else None
    row = await database.fetchrow(
        _RECORD_CALL_IF_SO,
        held.session_id,
        tenant_id,
        call.call_id,
        call.view,
        call.head,
        call.epoch,
        *_values(call),
        held.created_at,
        held.session_model,
        last,
        held.compaction != "none",
        held.learned_version,
        next((known.version for known in held.calibrations if known.estimator == estimator), 0),
        estimator,
        held.decisions,
        held.layers_version,
        held.outside_tokens,
    )
    return None if row is None else str(row["compaction"])


def _values(call: NewCall) -> tuple[object, ...]:
    return (
        *call.policy,
        call.format,
        call.model,
        call.render_version,
        texts.dumps(call.manifest),
        list(call.breakpoints),
        call.estimate,
        call.target,
        call.sha256,
        call.counted,
        call.evicted_tokens,
        call.evicted_tokens.bit_length(),
        call.keep_days,
        call.retry_of,
    )
