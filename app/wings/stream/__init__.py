"""Streams of sessions."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from app.runtime.wing import Wing

if TYPE_CHECKING:
    from app.http.operation import Resource
    from app.runtime.settings import KernelSettings
    from app.runtime.wiring import Services


class StreamSettings(BaseModel):
    """Settings of streams."""

    streams_max: int = Field(
        500,
        ge=0,
        description="Maximum concurrent streams in one API process; further ones get 503. Keep it well below the limit"
        " of open files.",
    )


if TYPE_CHECKING:

    class Settings(StreamSettings, KernelSettings):
        """All settings that this wing uses."""


def _services(settings: "Settings", kernel: "Services") -> Iterable[object]:
    from app.wings.stream.service import Streams

    yield Streams(kernel.database, streams_max=settings.streams_max, readers=max(1, settings.pool_size // 2))


def _routes(_: object) -> "Sequence[Resource]":
    from app.wings.stream.routes import router

    return [router]


@asynccontextmanager
async def _lifespan(_: object, services: "Services", stopping: asyncio.Event) -> AsyncIterator[None]:
    """End all streams when the server begins to stop: they would keep it running."""
    from app.wings.stream.service import Streams

    streams: Streams = services.by_class[Streams]

    async def end() -> None:
        await stopping.wait()
        streams.end()

    ending = asyncio.create_task(end())
    try:
        yield
    finally:
        ending.cancel()


WING = Wing(settings=StreamSettings, services=_services, routes=_routes, lifespan=_lifespan)
