"""The tables as of the newest migration, for Alembic and for tests; the application never imports this.

Every key of per-session data starts with `session_id`, by which the schema is sharded. `session_id` is uuid5(tenant,
external id), so callers' own ids need no global index.
"""

from typing import Final

from sqlalchemy import (
    ARRAY,
    DDL,
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    event,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import INT8MULTIRANGE, JSONB, ExcludeConstraint

metadata: Final = MetaData(
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
        "ck": "%(table_name)s_%(constraint_name)s_check",
    }
)

# Equality of a uuid for the exclusion constraint, without the extension that would provide it. (SQLAlchemy's DDL
# constructor is untyped.)
event.listen(metadata, "before_create", DDL("CREATE TYPE uuidrange AS RANGE (subtype = uuid)"))  # type: ignore[no-untyped-call]


def _created() -> Column[object]:
    return Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now())


def _tenant(*, checked: bool = False) -> Column[object]:
    """Return the tenant's column. Per-session rows have no foreign key to the tenant: their session's row has it, and
    checking one for each insert would lock the one tenant row that all writers share."""
    return Column("tenant_id", Uuid, *([ForeignKey("tenants.tenant_id")] if checked else []), nullable=False)


def _newest_first(name: str, *columns: str, where: str | None = None) -> Index:
    """Return an index on a tenant's rows by some columns, newest first."""
    only = None if where is None else text(where)
    order = (text("created_at DESC"), text("call_id DESC"))
    return Index(name, "tenant_id", *columns, *order, postgresql_where=only)


tenants = Table(
    "tenants",
    metadata,
    Column("tenant_id", Uuid, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    _created(),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", Uuid, primary_key=True),
    _tenant(checked=True),
    Column("name", Text, nullable=False),
    Column("secret_sha256", LargeBinary, nullable=False, unique=True),
    Column("scopes", ARRAY(Text), nullable=False),
    _created(),
    Column("revoked_at", DateTime(timezone=True)),
    Column("expires_at", DateTime(timezone=True)),
    # The prefix of the names of the sessions that the key may access; NULL: all.
    Column("session_prefix", Text),
    # Accurate to about a minute.
    Column("last_used_at", DateTime(timezone=True)),
    Index("api_keys_listed_idx", "tenant_id", text("created_at DESC"), text("key_id DESC")),
)

policies = Table(
    "policies",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("document", JSON, nullable=False),
    _created(),
)

sessions = Table(
    "sessions",
    metadata,
    Column("session_id", Uuid, primary_key=True),
    _tenant(checked=True),
    Column("external_id", Text, nullable=False),
    Column("policy_name", Text, nullable=False, server_default="default"),
    Column("policy_version", Integer, nullable=False, server_default="1"),
    Column("model", Text),
    Column("estimator", Text, nullable=False),
    Column("metadata", JSON, nullable=False, server_default="{}"),
    Column("head", BigInteger, nullable=False, server_default="0"),
    Column("turns", Integer, nullable=False, server_default="0"),
    Column("turn_id", Text),
    Column("awaits_user", Boolean, nullable=False, server_default=text("false")),
    Column("tokens", BigInteger, nullable=False, server_default="0"),
    Column("open_calls", JSONB, nullable=False, server_default="{}"),
    # The open calls that the last append answered, as they were before it.
    Column("answered", JSONB, nullable=False, server_default="{}"),
    # Events that a context needs however old they are, kept here so that a read does not have to search for them.
    Column("system_seq", BigInteger, nullable=False, server_default="0"),
    Column("tools_seq", BigInteger, nullable=False, server_default="0"),
    Column("user_seqs", ARRAY(BigInteger), nullable=False, server_default="{}"),
    Column("pinned_seqs", ARRAY(BigInteger), nullable=False, server_default="{}"),
    # The tokens of the log that summaries cover, by which an append decides whether to enqueue a compaction.
    Column("covered_tokens", BigInteger, nullable=False, server_default="0"),
    Column("redactions", Integer, nullable=False, server_default="0"),
    # Grows with every layer that is stored or removed.
    Column("layers_version", Integer, nullable=False, server_default="0"),
    # Grows with every change, other than an append, that makes held views stale.
    Column("version", BigInteger, nullable=False, server_default="0"),
    _created(),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # The session's stream is read until then: appends notify only before that time.
    Column("streamed_until", DateTime(timezone=True)),
    # The number of decisions to hide, show or pin.
    Column("decisions", BigInteger, nullable=False, server_default="0"),
    # A fork: its parent, and the sessions whose events its log begins with, oldest first, each with its last shared
    # seq.
    Column("parent", Text),
    Column("parent_at", BigInteger),
    Column("lineage_ids", ARRAY(Uuid), nullable=False, server_default="{}"),
    Column("lineage_to", ARRAY(BigInteger), nullable=False, server_default="{}"),
    # What the client sends in addition to the request, in the provider's tokens.
    Column("outside_tokens", Integer),
    # The id of the current line (NULL: this row's own). For a further line: the key of the session's own row, and its
    # number.
    Column("line", Text),
    Column("root", Uuid),
    Column("number", Integer, nullable=False, server_default="1"),
    # The last seq of the line in `chain`, the number of its events there, and the hash of the last of them.
    Column("chained_seq", BigInteger, nullable=False, server_default="0"),
    Column("chained", Integer, nullable=False, server_default="0"),
    Column("chain_tip", LargeBinary),
    # The newest use of the session by a call whose record was deleted.
    Column("called_at", DateTime(timezone=True)),
    UniqueConstraint("tenant_id", "external_id"),
    Index("sessions_lines_idx", "root", "number", postgresql_where=text("root IS NOT NULL")),
    # For prefixes of names, whatever the database's collation is.
    Index("sessions_named_idx", "tenant_id", "external_id", postgresql_ops={"external_id": "text_pattern_ops"}),
    Index("sessions_listed_idx", "tenant_id", text("created_at DESC"), text("session_id DESC")),
    Index(
        "sessions_parent_idx",
        "tenant_id",
        "parent",
        text("created_at DESC"),
        text("session_id DESC"),
        postgresql_where=text("parent IS NOT NULL"),
    ),
    postgresql_with={"fillfactor": 70},  # every append updates the row in place (HOT)
)

events = Table(
    "events",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    _tenant(),
    Column("turn", Integer, nullable=False),
    Column("type", Text, nullable=False),
    Column("event_id", Text),
    Column("call_id", Text),
    Column("tool", Text),
    Column("call_seq", BigInteger),
    Column("author", Text),
    Column("pinned", Boolean, nullable=False),
    Column("is_error", Boolean, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("cum_tokens", BigInteger, nullable=False),
    Column("gist", Text),
    Column("body", JSON, nullable=False),
    _created(),
    CheckConstraint("seq > 0", name="seq"),
    CheckConstraint("tokens >= 0", name="tokens"),
    Index("events_id_key", "session_id", "event_id", unique=True, postgresql_where=text("event_id IS NOT NULL")),
    Index("events_result_key", "session_id", "call_seq", unique=True, postgresql_where=text("call_seq IS NOT NULL")),
    Index("events_cum_tokens_idx", "session_id", "cum_tokens"),
    Index(
        "events_anchors_idx",
        "session_id",
        "type",
        "turn",
        "seq",
        postgresql_where=text("type IN ('user.message', 'system.prompt', 'tools')"),
    ),
    Index(
        "events_turns_idx",
        "session_id",
        "turn",
        "seq",
        postgresql_where=text("type IN ('turn.start', 'turn.end')"),
    ),
)

# For each event of a conversation the hash of the conversation up to it. `session_id` is the session's own row, `line`
# the line that the event belongs to; events shared with another line of the session are found under that line.
chain = Table(
    "chain",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    Column("line", Uuid, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    _tenant(),
    Column("number", Integer, nullable=False),
    Column("hash", LargeBinary, nullable=False),
    Index("chain_hash_idx", "session_id", "hash"),
)

appends = Table(
    "appends",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    Column("key", Text, primary_key=True),
    _tenant(),
    Column("request_sha256", LargeBinary, nullable=False),
    Column("answer", JSON, nullable=False),
    _created(),
    Index("appends_created_at_idx", "created_at"),
)

views = Table(
    "views",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    Column("view", Text, primary_key=True),
    _tenant(),
    Column("policy_name", Text, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("model", Text),
    Column("window_tokens", Integer, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("epochs", Integer, nullable=False),
    Column("target", Integer, nullable=False),
    Column("carry_tokens", BigInteger, nullable=False),
    _created(),
    # Why the next epoch is planned from scratch, if it is: policy, redaction or fork.
    Column("afresh", Text),
    # The provider's count for the last call with a report, and our own count for it.
    Column("reported_call", Uuid),
    Column("reported_epoch", Integer),
    Column("reported_head", BigInteger),
    Column("reported_tokens", Integer),
    Column("reported_counted", Integer),
    Column("reported_outside", Integer),
    # The calibration learned from the view's own calls; the version grows with every change.
    Column("learned", JSON),
    Column("learned_version", Integer, nullable=False, server_default="0"),
    Column("warmed_at", DateTime(timezone=True)),
)

epochs = Table(
    "epochs",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    Column("view", Text, primary_key=True),
    Column("epoch", Integer, primary_key=True),
    _tenant(),
    Column("head", BigInteger, nullable=False),
    Column("cause", Text, nullable=False),
    Column("frontier", JSON, nullable=False),
    # The parts of the frontier that reads need.
    Column("floor", BigInteger, nullable=False),
    Column("kept", ARRAY(BigInteger), nullable=False),
    Column("stubbed", ARRAY(BigInteger), nullable=False),
    Column("tokens_before", Integer, nullable=False),
    Column("tokens_after", Integer, nullable=False),
    _created(),
    Column("folded", ARRAY(Uuid), nullable=False, server_default="{}"),
    # Evictions do not change within an epoch: calls refer to them. `evicted` are the seqs that are not shown as logged.
    Column("evictions", JSON, nullable=False, server_default="[]"),
    Column("evicted", INT8MULTIRANGE, nullable=False, server_default="{}"),
    # The seq from which the context differs from the previous epoch's (0: from its beginning), and the tokens before
    # it.
    Column("changed_seq", BigInteger, nullable=False, server_default="0"),
    Column("stable_tokens", Integer, nullable=False, server_default="0"),
)

summaries = Table(
    "summaries",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    Column("id", Uuid, primary_key=True),
    _tenant(),
    # Groups the summaries that together cover a log: the session's id, or one derived from it and an author filter.
    Column("cover_id", Uuid, nullable=False),
    Column("depth", Integer, nullable=False),
    Column("from_seq", BigInteger, nullable=False),
    Column("to_seq", BigInteger, nullable=False),
    Column("text", Text, nullable=False),
    Column("digest", JSON, nullable=False),
    Column("tokens", Integer, nullable=False),
    Column("source_tokens", BigInteger, nullable=False),
    Column("events", Integer, nullable=False),
    Column("turns", ARRAY(Integer), nullable=False),
    Column("split_turn", Integer),
    Column("starts_at", DateTime(timezone=True), nullable=False),
    Column("ends_at", DateTime(timezone=True), nullable=False),
    Column("summarizer", Text, nullable=False),
    Column("model", Text),
    Column("prompt_version", Text),
    Column("usage", JSON, nullable=False),
    Column("degraded", Boolean, nullable=False),
    Column("status", Text, nullable=False),
    Column("complaints", ARRAY(Text), nullable=False, server_default="{}"),
    Column("sources", ARRAY(Uuid), nullable=False, server_default="{}"),
    Column("superseded_by", Uuid),
    _created(),
    # For a fork's inherited summary: the session that holds its text and digest, under the same id.
    Column("origin", Uuid),
    CheckConstraint("1 <= from_seq AND from_seq <= to_seq", name="span"),
    CheckConstraint("status IN ('live', 'superseded', 'refused', 'invalid')", name="status"),
    # No event is covered twice, at any depth.
    ExcludeConstraint(
        (text("uuidrange(cover_id, cover_id, '[]')"), "="),
        (text("int8range(from_seq, to_seq, '[]')"), "&&"),
        where=text("status = 'live'"),
        using="gist",
        name="summaries_live_excl",
    ),
    Index("summaries_degraded_idx", "created_at", postgresql_where=text("status = 'live' AND degraded")),
    Index("summaries_id_idx", "id"),
    Index("summaries_live_idx", "session_id", "cover_id", "from_seq", postgresql_where=text("status = 'live'")),
)

compactions = Table(
    "compactions",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    Column("id", Uuid, primary_key=True),
    _tenant(),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("focus", Text),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("error", Text),
    Column("from_seq", BigInteger),
    Column("to_seq", BigInteger),
    Column("summaries", ARRAY(Uuid), nullable=False, server_default="{}"),
    Column("tokens_read", BigInteger, nullable=False, server_default="0"),
    Column("tokens_before", BigInteger, nullable=False, server_default="0"),
    Column("tokens_after", BigInteger, nullable=False, server_default="0"),
    _created(),
    Column("started_at", DateTime(timezone=True)),
    Column("finished_at", DateTime(timezone=True)),
    # The context that waits for it.
    Column("view", Text),
    Column("window_tokens", Integer),
    Column("policy_name", Text),
    Column("policy_version", Integer),
    CheckConstraint("state IN ('scheduled', 'running', 'succeeded', 'skipped', 'failed')", name="state"),
    Index("compactions_open_idx", "created_at", postgresql_where=text("state IN ('scheduled', 'running')")),
    Index(
        "compactions_ended_idx",
        "tenant_id",
        "finished_at",
        postgresql_where=text("state IN ('succeeded', 'skipped', 'failed')"),
    ),
)

redactions = Table(
    "redactions",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    _tenant(),
    Column("key_id", Uuid),
    _created(),
)

# Every decision is kept with the head as of which it was taken; the newest about an event applies.
visibility = Table(
    "visibility",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("decision", BigInteger, primary_key=True),
    Column("action", Text, primary_key=True),
    _tenant(),
    Column("head", BigInteger, nullable=False),
    Column("replacement", Text),
    Column("path", Text),
    _created(),
    CheckConstraint("action IN ('hide', 'show', 'pin', 'unpin')", name="action"),
)

model_calls = Table(
    "model_calls",
    metadata,
    # No foreign key: checking it would lock the session's row on every call, which would block its writers.
    Column("session_id", Uuid, primary_key=True),
    Column("call_id", Uuid, primary_key=True),
    _tenant(),
    Column("view", Text, nullable=False),
    Column("head", BigInteger, nullable=False),
    Column("epoch", Integer, nullable=False),
    Column("policy_name", Text, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("format", Text, nullable=False),
    Column("model", Text),
    Column("render_version", Integer, nullable=False),
    Column("manifest", JSON, nullable=False),
    Column("breakpoints", ARRAY(BigInteger), nullable=False),
    Column("estimate", Integer, nullable=False),
    Column("target", Integer, nullable=False),
    Column("sha256", LargeBinary, nullable=False),
    _created(),
    # The estimator's own count, before calibration; `evicted_class` is the bit length of `evicted_tokens`.
    Column("counted", Integer),
    Column("evicted_tokens", Integer, nullable=False, server_default="0"),
    Column("evicted_class", SmallInteger, nullable=False, server_default="0"),
    Column("expires_at", DateTime(timezone=True)),
    Column("retry_of", Uuid),
    # Copies of the manifest's values that statements read. `clock` is the caller's, if it set one.
    Column("clock", DateTime(timezone=True)),
    Column("window_tokens", Integer),
    Column("outside_tokens", Integer),
    Column("tools_tokens", Integer),
    Column("system_tokens", Integer),
    Column("ephemeral_tokens", Integer),
    Column("breakpoint_tokens", ARRAY(Integer)),
    Column("breakpoint_blocks", ARRAY(Integer)),
    # The session's group if the gateway holds a share of sessions out; null if it holds out none.
    Column("held_out", Boolean),
    # The outcome, once it is reported. `input_tokens` includes cached ones.
    Column("reported_at", DateTime(timezone=True)),
    Column("input_tokens", Integer),
    Column("cache_read_tokens", Integer),
    Column("cache_write_tokens", Integer),
    Column("output_tokens", Integer),
    Column("latency_ms", Integer),
    Column("error", JSON),
    Column("overflow", Boolean, nullable=False, server_default=text("false")),
    Index("model_calls_epoch_idx", "session_id", "view", "epoch", "call_id"),
    _newest_first("model_calls_listed_idx"),
    _newest_first("model_calls_model_idx", "model"),
    _newest_first("model_calls_evicted_idx", "evicted_class", where="evicted_class > 0"),
    _newest_first("model_calls_overflow_idx", where="overflow"),
    Index("model_calls_expires_idx", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
    postgresql_with={"fillfactor": 85},  # the outcome is written into the row later
)

calibrations = Table(
    "calibrations",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id"), primary_key=True),
    Column("model", Text, primary_key=True),
    Column("estimator", Text, primary_key=True),
    Column("samples", JSON, nullable=False),
    Column("reported", BigInteger, nullable=False),
    Column("ratio", Double, nullable=False),
    Column("margin", Double, nullable=False),
    # The real window that a provider has named, and the window that was assumed then.
    Column("window_tokens", Integer),
    Column("window_asked", Integer),
    # Grows when the applied values change, so that plans made with older ones are detected.
    Column("version", Integer, nullable=False, server_default="0"),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    # In epoch seconds. Claims are windows that were named but are not believed yet.
    Column("window_at", Double, nullable=False, server_default="0"),
    Column("accepted_tokens", Integer, nullable=False, server_default="0"),
    Column("accepted_at", Double, nullable=False, server_default="0"),
    Column("claims", JSON, nullable=False, server_default="[]"),
)

# Built from the log when a search needs it. Terms are hashes of a word and the session. The events from `start` to
# `head` are indexed.
search_heads = Table(
    "search_heads",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    _tenant(),
    Column("head", BigInteger, nullable=False, server_default="0"),
    Column("entries", Integer, nullable=False, server_default="0"),
    Column("length", BigInteger, nullable=False, server_default="0"),
    Column("version", SmallInteger, nullable=False, server_default="1"),
    Column("start", BigInteger, nullable=False, server_default="1"),
)

search = Table(
    "search",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    _tenant(),
    Column("length", Integer, nullable=False),
    Column("terms", ARRAY(BigInteger), nullable=False),
    Column("counts", ARRAY(SmallInteger), nullable=False),
    Index(
        "search_terms_idx",
        "terms",
        postgresql_using="gin",
        postgresql_with={"fastupdate": "on", "gin_pending_list_limit": 512},
    ),
)

# A session's changes other than events. No foreign keys: checking one would lock the session's row after rows that its
# erasure locks later.
change_counts = Table(
    "change_counts",
    metadata,
    Column("session_id", Uuid, primary_key=True),
    _tenant(),
    Column("number", BigInteger, nullable=False),
)

changes = Table(
    "changes",
    metadata,
    Column("session_id", Uuid, primary_key=True),
    Column("number", BigInteger, primary_key=True),
    _tenant(),
    Column("kind", Text, nullable=False),
    Column("head", BigInteger, nullable=False),
    Column("body", JSON, nullable=False),
    _created(),
    CheckConstraint("kind IN ('epoch', 'compaction')", name="kind"),
    Index("changes_created_idx", "tenant_id", "created_at"),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("url", Text, nullable=False),
    Column("events", ARRAY(Text), nullable=False),
    Column("secret", Text, nullable=False),
    Column("private_targets", Boolean, nullable=False),
    _created(),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("session_id", Uuid, primary_key=True),
    Column("id", Uuid, primary_key=True),
    _tenant(),
    Column("webhook", Text, nullable=False),
    Column("type", Text, nullable=False),
    # As sent and signed, byte for byte.
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False, server_default="pending"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("next_at", DateTime(timezone=True), server_default=func.now()),
    Column("status", Integer),
    Column("error", Text),
    _created(),
    Column("finished_at", DateTime(timezone=True)),
    CheckConstraint("state IN ('pending', 'delivered', 'failed')", name="state"),
    ForeignKeyConstraint(
        ["tenant_id", "webhook"],
        ["webhooks.tenant_id", "webhooks.name"],
        ondelete="CASCADE",
        name="deliveries_webhook_fkey",
    ),
    Index("deliveries_listed_idx", "tenant_id", "webhook", text("created_at DESC"), text("id DESC")),
    Index("deliveries_pending_idx", "next_at", postgresql_where=text("state = 'pending'")),
    Index("deliveries_finished_idx", "finished_at", postgresql_where=text("state <> 'pending'")),
)

# The newest version of each kind is shown, unless it has no content; recorded calls may show older ones.
layers = Table(
    "layers",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    _tenant(),
    Column("content", JSON),
    Column("tokens", Integer, nullable=False),
    # The explicitly started turn it belongs to: it ends with that turn.
    Column("turn", Integer),
    _created(),
    CheckConstraint("kind IN ('sources', 'announce')", name="kind"),
)

# Tokens that a tenant's summaries have cost on a day (UTC). `refused`: requests that were not made.
provider_spend = Table(
    "provider_spend",
    metadata,
    _tenant(),
    Column("day", Date, nullable=False),
    Column("spent", BigInteger, nullable=False),
    Column("reserved", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    PrimaryKeyConstraint("tenant_id", "day"),
    Index("provider_spend_day_idx", "day"),
)

# The key with which a tenant's contents are sealed, wrapped by the operator's; NULL once it was dropped.
content_keys = Table(
    "content_keys",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id"), primary_key=True),
    Column("wrapped", LargeBinary),
    _created(),
    Column("dropped_at", DateTime(timezone=True)),
    CheckConstraint("(wrapped IS NULL) = (dropped_at IS NOT NULL)", name="dropped"),
)

# Counts of the workers' work, for all tenants together: workers have no metrics endpoint.
work_counts = Table(
    "work_counts",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("maker", Text, primary_key=True),
    Column("outcome", Text, primary_key=True),
    Column("bound", Double, primary_key=True),
    Column("number", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("newest_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

# The number of days that a tenant's data is kept. NULL: no rule.
retention = Table(
    "retention",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id"), primary_key=True),
    Column("session_days", Integer),
    Column("idle_days", Integer),
    Column("call_days", Integer),
    Column("compaction_days", Integer),
    Column("change_days", Integer),
    Column("delivery_days", Integer),
    Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

# Erasures of the sessions that match a filter. The filter is deleted when an erasure is done.
erasures = Table(
    "erasures",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id"), primary_key=True),
    Column("id", Uuid, primary_key=True),
    Column("key_id", Uuid),
    Column("idempotency_sha256", LargeBinary),
    Column("filter", JSON),
    Column("filter_sha256", LargeBinary, nullable=False),
    Column("forks", Boolean, nullable=False),
    Column("sessions", BigInteger),
    Column("kept", BigInteger),
    Column("counts", JSON),
    _created(),
    Column("finished_at", DateTime(timezone=True)),
    UniqueConstraint("tenant_id", "idempotency_sha256"),
)

# The sessions that each has erased. No foreign key: the session is gone.
erased = Table(
    "erased",
    metadata,
    Column("session_id", Uuid, primary_key=True),
    Column("erasure_id", Uuid, primary_key=True),
    _tenant(),
    Column("counts", JSON, nullable=False),
    Column("erased_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
    Index("erased_listed_idx", "tenant_id", "erasure_id", "session_id"),
)

# The keys of erased sessions, whose names can be used again only with metadata. No foreign key: the session is gone.
erased_names = Table(
    "erased_names",
    metadata,
    Column("session_id", Uuid, primary_key=True),
    _tenant(),
    Column("erased_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
)

# Requests that kept the provider's cache of a call. NULL tokens: it was refused, or not answered.
warmings = Table(
    "warmings",
    metadata,
    Column("session_id", Uuid, ForeignKey("sessions.session_id", ondelete="CASCADE"), primary_key=True),
    Column("id", Uuid, primary_key=True),
    _tenant(),
    Column("call_id", Uuid, nullable=False),
    Column("view", Text, nullable=False),
    Column("policy_name", Text, nullable=False),
    Column("policy_version", Integer, nullable=False),
    Column("format", Text, nullable=False),
    Column("model", Text),
    _created(),
    Column("input_tokens", Integer),
    Column("cache_read_tokens", Integer),
    Column("cache_write_tokens", Integer),
    Index("warmings_created_idx", "tenant_id", "created_at"),
)

# The key with which a tenant's compaction items are sealed.
item_keys = Table(
    "item_keys",
    metadata,
    Column("tenant_id", Uuid, ForeignKey("tenants.tenant_id"), primary_key=True),
    Column("key", LargeBinary, nullable=False),
    _created(),
)
