"""Requests under an idempotency key: the second of two equal ones gets the first one's answer."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import Header, Request
from fastapi.encoders import jsonable_encoder
from pydantic import BaseModel

from app.api.documents import KEY_CHARS_MAX, KEY_DESCRIPTION
from app.api.reach import operation_of
from app.services.answers import Answers
from app.services.tenants import Caller

Key = Annotated[
    str | None, Header(alias="Idempotency-Key", min_length=1, max_length=KEY_CHARS_MAX, description=KEY_DESCRIPTION)
]


class Once:
    """One request that may come again; without a key it is always done."""

    def __init__(self, request: Request, who: Caller, sid: str, key: str | None, body: BaseModel) -> None:
        self._answers: Answers = request.state.services.answers
        self._who, self._sid, self._key = who, sid, key
        about = sorted(f"{name}={value}" for name, value in request.path_params.items() if name != "sid")
        self._request = "" if key is None else f"{operation_of(request.scope)} {about} {body.model_dump()!r}"

    async def before(self) -> Mapping[str, Any] | None:
        """Return what was kept of the first such request; None without one. Raises IdempotencyConflict."""
        if self._key is None:
            return None
        return await self._answers.before(self._who.tenant_id, self._sid, self._key, self._request)

    async def keep(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Keep what is answered; return what is to be answered, which may be that of a request that was quicker."""
        if self._key is None:
            return answer
        return await self._answers.keep(self._who.tenant_id, self._sid, self._key, self._request, answer)

    async def done(self, model: type[BaseModel], make: Callable[[], Awaitable[Any]]) -> tuple[Any, bool]:
        """Return an answer in the shape of `model`, and whether it was made now."""
        kept = await self.before()
        if kept is not None:
            return kept, False
        made = await make()
        if self._key is None:
            return made, True
        shape = model.model_validate(made, from_attributes=True)
        return await self.keep(jsonable_encoder(shape, by_alias=True)), True
