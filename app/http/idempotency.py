"""Idempotency keys: a repeated request gets the response of the first one."""

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Header, Request
from fastapi.encoders import jsonable_encoder
from pydantic import BaseModel

from app.core.errors import Conflict, InvalidRequest, SessionGone
from app.core.log.segments import session_of
from app.http.openapi import KEY_CHARS_MAX, KEY_DESCRIPTION
from app.http.operation import Who
from app.store import answers
from app.store.answers import AlreadyAnswered, KeyClaim, ResponseToStore
from app.store.engine import Database
from app.store.ids import session_ref
from app.tenants import Caller

Key = Annotated[
    str | None, Header(alias="Idempotency-Key", min_length=1, max_length=KEY_CHARS_MAX, description=KEY_DESCRIPTION)
]
Done = TypeVar("Done")
"""The result of an operation."""


def idempotency_key(request: Request) -> str | None:
    """Return the idempotency key of a request whose endpoint parses it itself; None without one.

    Raises InvalidRequest.
    """
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= KEY_CHARS_MAX:
        raise InvalidRequest(f"Idempotency-Key must have 1 to {KEY_CHARS_MAX} characters", field="Idempotency-Key")
    return key


class Idempotency:
    """The idempotency of one request; `claim` is None without a key: such a request is always executed."""

    def __init__(self, request: Request, who: Caller, body: BaseModel, key: str | None) -> None:
        self._database: Database = request.state.services.database
        self.claim: KeyClaim | None = None
        if key is not None:
            tenant_id, sid = who.tenant_id, request.path_params["sid"]
            about = sorted(f"{name}={value}" for name, value in request.path_params.items() if name != "sid")
            asked = f"{request.scope['route'].operation_id} {about} {body.model_dump()!r}"
            asked_sha256 = hashlib.sha256(asked.encode("utf-8", "surrogatepass")).digest()
            self.claim = KeyClaim(session_ref(tenant_id, session_of(sid)), key, asked_sha256)

    async def stored_response(self) -> Mapping[str, Any] | None:
        """Return the response stored under the key; None if there is none, or no key. Raises IdempotencyConflict."""
        return None if self.claim is None else await answers.find_claimed(self._database, self.claim)

    def response_to_store(self, to_response: Callable[[Done], Mapping[str, Any]]) -> ResponseToStore[Done] | None:
        """Return what the operation must store in its transaction; None without a key."""

        async def answer(done: Done) -> Mapping[str, Any]:
            return to_response(done)

        return None if self.claim is None else ResponseToStore(self.claim, answer)

    async def concurrent_response(self) -> Mapping[str, Any]:
        """Return the response to the concurrent request that was faster, after this one raised AlreadyAnswered.

        Raises IdempotencyConflict, or Conflict if there is none.
        """
        found = await self.stored_response()
        if found is None:
            raise Conflict("the session is being erased")
        return found

    async def run_once(
        self,
        model: type[BaseModel],
        make: Callable[[ResponseToStore[Done] | None], Awaitable[Done]],
        show: Callable[[Done], Any],
    ) -> Any:
        """Return the first response if there is one, else the result of `make`, converted by `show`.

        `make` does the work and must store the ResponseToStore that it is given in the same transaction. The stored
        response is JSON of `model`.
        """
        kept = await self.stored_response()
        if kept is not None:
            return kept
        try:
            made = await make(self.response_to_store(lambda done: _to_json(model, show(done))))
        except AlreadyAnswered:
            return await self.concurrent_response()
        return show(made)

    async def run_repeatable(self, model: type[BaseModel], make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the first response if there is one, else that of `make`, which may safely be executed twice.

        The response is stored after the operation, as JSON of `model`; if another request was faster, its response is
        returned. Raises IdempotencyConflict if that request was different.
        """
        kept = await self.stored_response()
        if kept is not None:
            return kept
        made = await make()
        if self.claim is None:
            return made
        answer = _to_json(model, made)
        try:
            async with self._database.transaction() as tx:
                await answers.store_claimed(tx, self.claim, answer)
        except AlreadyAnswered:
            return await self.stored_response() or answer
        except SessionGone:
            pass
        return answer


def _to_json(model: type[BaseModel], made: Any) -> Mapping[str, Any]:
    response: Mapping[str, Any] = jsonable_encoder(model.model_validate(made, from_attributes=True), by_alias=True)
    return response


async def _idempotent(request: Request, who: Who, key: Key = None) -> Callable[[BaseModel], Idempotency]:
    return lambda body: Idempotency(request, who, body, key)


Idempotent = Annotated[Callable[[BaseModel], Idempotency], Depends(_idempotent)]
"""An endpoint's parameter: a function that returns the Idempotency of the request, given its body."""
