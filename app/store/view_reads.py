"""The statements that read a view: one for all that a context needs, one for the changes since an earlier read."""

from typing import Final

from app.store import calibrations, compactions, event_log, layers, summaries, visibility
from app.store.rows import EVENT_COLUMNS

_LEARNED: Final = """
    v.reported_call, v.reported_epoch, v.reported_head, v.reported_tokens, v.reported_counted, v.reported_outside,
    v.learned, coalesce(v.learned_version, 0) AS learned_version"""


def _model(session: str) -> str:
    """Return the SQL of the model to plan for: the requested one, otherwise the view's, otherwise the session's."""
    default = f"CASE WHEN v.model IS NULL THEN {session}.model ELSE v.model END"
    return f"CASE WHEN :model::text IS NULL THEN {default} ELSE :model END"


EVENTS_PER_READ: Final = 2_000

# Seqs of the events that every context needs, however old. `h` is the session's row.
_ANCHORS: Final = f"""
    h.user_seqs || h.pinned_seqs || h.tools_seq || ARRAY({event_log.PROMPTS.replace("$newest", "h.system_seq")})
    || ARRAY(SELECT (c.value ->> 'seq')::bigint FROM jsonb_each(h.open_calls) c)
    || ARRAY(SELECT call_seq FROM events WHERE session_id = :session_id AND seq = ANY(h.pinned_seqs))
    || ARRAY(SELECT seq FROM events WHERE session_id = :session_id AND call_seq = ANY(h.pinned_seqs))"""

# `h` is the session's row, `e` the epoch, `r` the newest event and where a bounded read would start, `p` the first seq
# of the tail and the last one that is read apart from this statement (`apart_to`), `decided` the visibility decisions.
# Unless `r` and `anchors` are MATERIALIZED, Postgres plans each use of them, which takes half of its planning time.
#
# The events come from two index ranges. The tail begins after the epoch's floor, unless more has been appended since
# the epoch's head than a bounded read covers: then it begins with the last `bound_tokens`, found by one look-up in the
# index on cum_tokens. Older events that must stay are read by their seqs. A condition for an index has no COALESCE and
# no arithmetic on columns: under row-level security the index would not be used (docs/decisions/0020).
#
# Rows in one array are decoded in one go, which delays every other request. So only the newest events of a long tail
# are in it, and the rest is read page by page. The rest changes only by redaction, which the recording of a call
# detects.
_LOAD: Final = f"""
WITH h AS (
    SELECT s.*, least(s.head, coalesce(:at::bigint, s.head)) AS at_head
    FROM sessions s WHERE s.session_id = :session_id AND s.tenant_id = :tenant_id
), e AS (
    SELECT * FROM epochs WHERE NOT :fresh AND session_id = :session_id AND view = :view
        AND epoch = CASE WHEN :epoch::int IS NULL
                    THEN (SELECT epoch FROM views WHERE session_id = :session_id AND view = :view) ELSE :epoch END
), r AS MATERIALIZED (
    SELECT h.at_head, last.turn, coalesce(e.head, 0) AS epoch_head, coalesce(e.floor, 0) AS floor,
           coalesce((SELECT t.seq FROM events t
                     WHERE t.session_id = :session_id AND t.cum_tokens > last.cum_tokens - :bound_tokens
                     ORDER BY t.cum_tokens, t.seq LIMIT 1), 1) AS start
    FROM h LEFT JOIN events last ON last.session_id = :session_id AND last.seq = h.at_head LEFT JOIN e ON true
), p AS (
    SELECT r.*, first, first - 1 AS before, greatest(first - 1, at_head - {EVENTS_PER_READ}) AS apart_to
    FROM r CROSS JOIN LATERAL (SELECT CASE WHEN start > epoch_head + 1 THEN start ELSE floor + 1 END AS first) f
), anchors AS MATERIALIZED (
    SELECT coalesce(:anchors::bigint[], {_ANCHORS}) AS seqs FROM h
), tail AS (
    SELECT ev.* FROM p, events ev WHERE ev.session_id = :session_id AND ev.seq > p.apart_to AND ev.seq <= p.at_head
    UNION ALL
    SELECT ev.* FROM events ev WHERE ev.session_id = :session_id AND ev.seq = ANY(ARRAY(
        SELECT i FROM p, e, unnest(e.kept) i WHERE i < p.first
        UNION SELECT i FROM p, anchors, unnest(anchors.seqs) i
            WHERE i < p.first AND p.first > p.floor + 1))
), decided AS (
    SELECT newest.* FROM ({visibility.CURRENT_UNTIL}) AS newest CROSS JOIN h CROSS JOIN p LEFT JOIN e ON true
    WHERE newest.seq > coalesce(h.lineage_to[cardinality(h.lineage_to)], 0)
      AND (newest.seq >= p.first OR newest.seq = ANY(e.kept)
           OR newest.seq = ANY(ARRAY(SELECT unnest(seqs) FROM anchors)))
)
SELECT h.session_id, h.tenant_id, h.version, h.line, h.model, h.policy_name, h.policy_version, h.estimator,
       h.tokens AS all_tokens, h.outside_tokens, h.head AS real_head,
       h.redactions, h.parent, h.lineage_ids, h.lineage_to, h.system_seq,
       CASE WHEN h.lineage_ids <> '{{}}' THEN (SELECT seqs FROM anchors) END AS anchors,
       h.decisions, coalesce(:pinned::bigint[], h.pinned_seqs) AS pinned,
       $decided AS decided,
       h.at_head AS head, coalesce(p.turn, 0) AS turn, p.first, p.apart_to, p.floor, p.epoch_head, h.created_at,
       v.policy_name AS view_policy_name, v.policy_version AS view_policy_version, v.model AS view_model,
       v.window_tokens, coalesce(v.epoch, 0) AS view_epoch, coalesce(v.epochs, 0) AS epochs, v.afresh,
       coalesce(e.epoch, 0) AS epoch, e.frontier,
       last_call.breakpoints, last_call.used_at,
       unread.turn AS unread_turn, unread.cum_tokens AS unread_tokens, $compaction AS compaction, $asked_for,
       $cover AS cover,
       $layers, $calibrations AS calibrations, {_LEARNED}, $folded AS folded, $tail AS events
FROM h CROSS JOIN p LEFT JOIN views v ON v.session_id = :session_id AND v.view = :view LEFT JOIN e ON true
LEFT JOIN LATERAL (
    SELECT breakpoints, extract(epoch FROM coalesce(clock, greatest(created_at, v.warmed_at)))::float8 AS used_at
    FROM model_calls m WHERE m.session_id = :session_id AND m.view = :view AND m.epoch = e.epoch AND m.head <= h.at_head
    ORDER BY m.call_id DESC LIMIT 1
) last_call ON true
LEFT JOIN events unread ON unread.session_id = :session_id AND unread.seq = p.before AND p.first > p.floor + 1
"""

# The hot path: the changes since an earlier read (`head`) in the same epoch of the same session. No row if that read is
# stale, or if more was appended than one read should return (`most`).
_CHANGES: Final = f"""
SELECT s.tokens AS all_tokens, s.head, s.version, s.line, v.policy_name AS view_policy_name,
       v.policy_version AS view_policy_version, v.model AS view_model, v.window_tokens, v.epoch AS view_epoch,
       v.epochs, v.afresh, s.model, s.policy_name, s.policy_version, s.outside_tokens, last_call.breakpoints,
       last_call.used_at, $cover AS cover, $compaction AS compaction, $asked_for,
       $layers, $calibrations AS calibrations, {_LEARNED}, $new AS events
FROM sessions s JOIN views v ON v.session_id = s.session_id AND v.view = :view
LEFT JOIN LATERAL (
    SELECT breakpoints, extract(epoch FROM coalesce(clock, greatest(created_at, v.warmed_at)))::float8 AS used_at
    FROM model_calls m WHERE m.session_id = :session_id AND m.view = :view AND m.epoch = :epoch
    ORDER BY m.call_id DESC LIMIT 1
) last_call ON true
WHERE s.session_id = :session_id AND s.tenant_id = :tenant_id AND s.created_at = :created_at AND v.epoch = :epoch
  AND s.head <= :head + :most
  AND s.decisions = :decisions
"""
ADDED_EVENTS_MAX: Final = 2_000

LAST_CALL: Final = """
SELECT breakpoints, extract(epoch FROM coalesce(clock, created_at))::float8 AS used_at
FROM model_calls WHERE session_id = :session_id AND view = :view AND epoch = :epoch AND head <= :head
ORDER BY call_id DESC LIMIT 1
"""

_NEWEST_PROMPT: Final = (
    "(SELECT max(n.seq) FROM events n WHERE n.session_id = :session_id AND n.seq <= :at AND n.type = 'system.prompt')"
)

# For a context as of an earlier seq: the values of the session's row as of that seq.
AS_OF: Final = f"""
SELECT (SELECT max(epoch) FROM epochs WHERE session_id = :session_id AND view = :view AND head <= :at) AS epoch,
       ARRAY({event_log.PROMPTS.replace("$newest", _NEWEST_PROMPT)}
             UNION SELECT max(seq) FROM events WHERE session_id = :session_id AND seq <= :at AND type = 'tools'
             UNION SELECT u.seq FROM events u WHERE u.session_id = :session_id AND u.seq <= :at
                 AND u.type = 'user.message'
                 AND u.turn = (SELECT turn FROM events WHERE session_id = :session_id AND seq = :at)
             UNION SELECT c.seq FROM events c WHERE c.session_id = :session_id AND c.seq <= :at AND c.type = 'tool.call'
                 AND NOT EXISTS (SELECT FROM events x
                                 WHERE x.session_id = :session_id AND x.call_seq = c.seq AND x.seq <= :at)
       ) AS anchors,
       ARRAY((SELECT seq FROM events WHERE session_id = :session_id AND seq <= :at AND pinned
              UNION SELECT unnest(:pinned::bigint[])
              UNION SELECT seq FROM visibility WHERE session_id = :session_id AND head <= :at AND action = 'pin')
             EXCEPT SELECT seq FROM (
                 SELECT DISTINCT ON (seq) seq, action FROM visibility
                 WHERE session_id = :session_id AND head <= :at AND action IN ('pin', 'unpin')
                 ORDER BY seq, decision DESC, action) AS newest WHERE action = 'unpin') AS pinned
"""

_LIVE: Final = "FROM summaries WHERE session_id = :session_id AND status = 'live' ORDER BY from_seq"
_FOLDED: Final = "FROM summaries WHERE session_id = :session_id AND id = ANY(e.folded) ORDER BY from_seq"
_CALIBRATIONS: Final = "FROM calibrations c WHERE c.tenant_id = :tenant_id AND c.model = $model"
_ADDED: Final = "FROM events WHERE session_id = :session_id AND seq > :head ORDER BY seq"
_TAIL_COLUMNS: Final = """
    t.seq, t.type, t.turn, t.tokens, t.cum_tokens, t.call_id, t.tool, t.call_seq, t.author,
    t.seq = ANY(coalesce(:pinned::bigint[], h.pinned_seqs)), t.is_error, t.gist,
    extract(epoch FROM t.created_at)::float8, $body"""
TAIL_BODY: Final = """
    CASE WHEN t.seq = ANY(e.stubbed) AND t.seq <> ALL(coalesce(:pinned::bigint[], h.pinned_seqs))
              AND t.seq <> ALL(ARRAY(SELECT seq FROM decided WHERE action = 'show'))
         THEN NULL ELSE t.body END"""


def _rows(columns: str, source: str) -> str:
    """Return the SQL of child rows as one column: an array of records is the fastest form."""
    return f"ARRAY(SELECT ROW({columns}) {source})"


def _fill(sql: str, session: str) -> str:
    """Fill in the parts that both statements share (`$cover`); `session` is the alias of the session's row."""
    parts = {
        "$decided": _rows(visibility.COLUMNS, "FROM decided ORDER BY seq"),
        "$compaction": compactions.COMPACTION_STATE,
        "$asked_for": compactions.REQUESTED_COLUMNS,
        "$cover": _rows(summaries.COLUMNS, _LIVE),
        "$layers": layers.current_of(session),
        "$calibrations": _rows(calibrations.COLUMNS, _CALIBRATIONS.replace("$model", _model(session))),
        "$folded": _rows(summaries.COLUMNS, _FOLDED),
        "$tail": _rows(_TAIL_COLUMNS.replace("$body", TAIL_BODY), "FROM tail t ORDER BY t.seq"),
        "$new": _rows(EVENT_COLUMNS, _ADDED),
    }
    for name, part in parts.items():
        sql = sql.replace(name, part)
    return sql


LOAD: Final = _fill(_LOAD, "h")
CHANGES: Final = _fill(_CHANGES, "s")
