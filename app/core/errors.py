"""The expected failures of requests. `http/errors.py` alone maps them to HTTP statuses."""


class ContextError(Exception):
    """Base of all expected failures; `fields` are the machine-readable members of the error response."""

    def __init__(self, detail: str, **fields: object) -> None:
        super().__init__(detail)
        self.detail = detail
        self.fields = fields


class InvalidRequest(ContextError):
    """The request can never be accepted as it is; a retry does not help."""


class InvalidEvent(InvalidRequest):
    """An event is invalid; fields: its `index` in the batch, and the `field` at fault."""


class InvalidMessage(InvalidRequest):
    """A provider-native message is invalid; fields: its `index` in the batch, and the `field` at fault."""


class InvalidPolicy(InvalidRequest):
    """A policy is invalid; field: the `knob` at fault."""


class UnknownCall(InvalidRequest):
    """A tool result names a call that is not in the log, or that already has a result."""

    def __init__(self, call_id: str, *, index: int) -> None:
        super().__init__(
            f"call_id {call_id!r} names no earlier tool.call of this session that still lacks its result",
            call_id=call_id,
            index=index,
        )


class DuplicateCall(InvalidRequest):
    """A tool call has the id of a call that has no result yet."""

    def __init__(self, call_id: str, *, index: int) -> None:
        super().__init__(f"call_id {call_id!r} is still open in this session", call_id=call_id, index=index)


class InvalidItem(InvalidRequest):
    """A compaction item cannot be read: it was altered, or made for another tenant or by another server."""


class NotFound(ContextError):
    """The tenant has nothing by the name that the request gives."""


class SessionGone(NotFound):
    """The session was erased while the request was processed."""


class Conflict(ContextError):
    """The request conflicts with the current state."""


class HeadConflict(Conflict):
    """`expected_head` is not the session's head; field: the actual `head`."""

    def __init__(self, *, expected: int, head: int) -> None:
        super().__init__(f"expected head {expected}, but the session's head is {head}", head=head)


class IdempotencyConflict(Conflict):
    """An idempotency key or an event id was already used with other content."""

    @classmethod
    def of_key(cls, key: str | None) -> "IdempotencyConflict":
        """Return the error for an idempotency key that came with another request before."""
        return cls("this Idempotency-Key was used with another request", key=key)


class ErasureCountConflict(Conflict):
    """An erasure would erase another number of sessions than it expects; field: the actual number of `sessions`."""

    def __init__(self, sessions: int, expected: int | None) -> None:
        asked = "names no expected number" if expected is None else f"expects {expected}"
        super().__init__(
            f"this would erase {sessions} sessions, but the request {asked}; nothing was erased", sessions=sessions
        )


class LineChanged(Conflict):
    """The session's name means another line than the one it was resolved to; `line` is the id of that line."""

    def __init__(self, line: str) -> None:
        super().__init__("the session has gone over to another line meanwhile; ask again", line=line)
        self.line = line


class CannotFit(ContextError):
    """No valid context fits the target; fields: `minimum_tokens`, `target`, `by_source`."""


class NothingToSend(ContextError):
    """The session holds no conversation yet that a provider accepts."""


class InjectionOverReserve(ContextError):
    """Injected content exceeds its reserve; fields: its `name` and `tokens`, and the `reserve`."""


class NotReproducible(ContextError):
    """A recorded call no longer renders to the same bytes; fields: `call_id`, `recorded_sha256`, `rendered_sha256`."""


class OutsidePrefix(ContextError):
    """The request concerns sessions to which the key has no access."""


class TooManySessions(ContextError):
    """The tenant's limit of sessions is reached; field: the `limit`."""


class TooManyLines(ContextError):
    """The session's limit of lines is reached; field: the `limit`."""


class TooManyRequests(ContextError):
    """The tenant's limit of concurrent requests is reached; fields: the `limit` and `retry_after_seconds`."""


class TooManyEvents(ContextError):
    """The tenant's limit of events is reached; fields: the `limit` per second and `retry_after_seconds`."""


class SessionErased(ContextError):
    """The session was erased on request and cannot be recreated without its metadata; field: the `session`."""


class ContentsErased(ContextError):
    """The key that the tenant's contents are sealed with was dropped, so none of them can be read."""


class StoreUnavailable(ContextError):
    """The database is unavailable."""


class TooManyStreams(ContextError):
    """The process's limit of streams is reached; field: the `limit`."""


class Overloaded(ContextError):
    """The process's limit of requests is reached; field: the `limit`."""


class UpstreamFailed(ContextError):
    """The gateway's provider could not be reached, or closed the connection before it answered."""


class UpstreamLate(ContextError):
    """The gateway's provider did not answer in time."""
