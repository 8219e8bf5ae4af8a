"""Every way a request can fail, as one tree.

    ContextError
      InvalidRequest        the caller sent something that can never be accepted
        InvalidEvent        ... at a given event of a batch
        InvalidMessage      ... at a given provider-native message of a batch
        InvalidPolicy       ... a policy knob, by name
        UnknownCall         a result names no open call
        DuplicateCall       a call reuses the id of a call that is still open
      NotFound              the thing named does not exist (for this tenant)
      Conflict              the caller's picture of the state is stale
        HeadConflict
        IdempotencyConflict
      CannotFit             no legal context fits the target
      NothingToSend         the session holds nothing that a model could be sent yet
      InjectionOverReserve  an injection is larger than what was reserved for it
      NotReproducible       a recorded call no longer comes out as it was recorded
      OutOfReach            the key is bound to other sessions than this would touch
      TooManySessions       the tenant has as many sessions as it may
      TooManyRequests       the tenant has as many requests under way as it may
      TooManyEvents         the tenant appends more events a second than it may
      StoreUnavailable      the database cannot be reached
      TooManyStreams        this process serves as many streams as it may
      Overloaded            this process answers as many requests as it may

HTTP statuses live in `api/errors.py`, nowhere else.
"""

from collections.abc import Mapping


class ContextError(Exception):
    """Base of all expected failures; `fields` are the machine-readable members of the answer."""

    def __init__(self, detail: str, **fields: object) -> None:
        super().__init__(detail)
        self.detail = detail
        self.fields: Mapping[str, object] = fields


class InvalidRequest(ContextError):
    """The request is malformed in a way no retry will cure."""


class InvalidEvent(InvalidRequest):
    """An event breaks a rule; fields: `index` in the batch and `field`."""

    def __init__(self, detail: str, *, index: int, field: str) -> None:
        super().__init__(detail, index=index, field=field)


class InvalidMessage(InvalidRequest):
    """A provider-native message breaks a rule; fields: `index` in the batch and `field`."""

    def __init__(self, detail: str, *, index: int, field: str) -> None:
        super().__init__(detail, index=index, field=field)


class InvalidPolicy(InvalidRequest):
    """A policy is nonsense; field: the `knob` at fault."""

    def __init__(self, detail: str, *, knob: str) -> None:
        super().__init__(detail, knob=knob)


class UnknownCall(InvalidRequest):
    """A tool result names a call that is not in the log or already has its result."""

    def __init__(self, call_id: str, *, index: int) -> None:
        super().__init__(
            f"call_id {call_id!r} names no earlier tool.call of this session that still lacks its result",
            call_id=call_id,
            index=index,
        )


class DuplicateCall(InvalidRequest):
    """A tool call reuses the id of a call that is still waiting for its result."""

    def __init__(self, call_id: str, *, index: int) -> None:
        super().__init__(f"call_id {call_id!r} is still open in this session", call_id=call_id, index=index)


class NotFound(ContextError):
    """The thing named does not exist."""


class Conflict(ContextError):
    """The caller's picture of the state is stale."""


class HeadConflict(Conflict):
    """`expected_head` is not the session's head; field: the real `head`."""

    def __init__(self, *, expected: int, head: int) -> None:
        super().__init__(f"expected head {expected}, but the session's head is {head}", head=head)


class IdempotencyConflict(Conflict):
    """A key or an event id was used before with other content."""


class CannotFit(ContextError):
    """No legal context fits; fields: `minimum_tokens`, `target`, `by_source`."""


class NothingToSend(ContextError):
    """The session holds nothing yet that a provider would accept as a conversation."""


class InjectionOverReserve(ContextError):
    """Injected content exceeds its reserve; fields: `name`, `tokens`, `reserve`."""


class NotReproducible(ContextError):
    """What a call's record names has been tampered with; fields: `call_id`, `recorded_sha256`, `rendered_sha256`."""


class OutOfReach(ContextError):
    """What was asked for concerns sessions that the key is not for."""


class TooManySessions(ContextError):
    """The tenant may have no more sessions; field: the `limit`."""


class TooManyRequests(ContextError):
    """The tenant may have no more requests under way; fields: the `limit` and `retry_after_seconds`."""


class TooManyEvents(ContextError):
    """The tenant appends too fast; fields: the `limit` a second and `retry_after_seconds`."""


class StoreUnavailable(ContextError):
    """The database cannot be reached right now."""


class TooManyStreams(ContextError):
    """No more streams are served here; field: the `limit`."""


class Overloaded(ContextError):
    """No more requests are taken here for now; field: the `limit`."""
