"""A replica of the database, from which the past is read."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, Field, SecretStr, ValidationInfo, field_validator

from app.runtime.wing import SENSITIVE, Wing, find_placement
from app.store import dsn

if TYPE_CHECKING:
    from app.runtime.wiring import Services

READS_DIVISOR: Final = 4
"""Reads of the past may use the primary's connections divided by this number."""


class ReplicaSettings(BaseModel):
    """Settings of a replica."""

    read_database_url: Annotated[str | None, SENSITIVE] = Field(
        None,
        description="Address of a hot standby of PALIMPSEST_DATABASE_URL, from which audits and ledgers are read; a"
        " single host. Unset: they are read from the primary.",
    )
    read_behind_seconds_max: float = Field(
        30.0,
        gt=0,
        description="Maximum lag of the replica, in seconds. While its lag is greater, the primary is read instead.",
    )

    @field_validator("read_database_url")
    @classmethod
    def _check_replica(cls, url: str | None, info: ValidationInfo) -> str | None:
        if not url:
            return None
        password: SecretStr | None = info.data.get("database_password")
        url = dsn.normalize(url, password.get_secret_value() if password else None)
        if len(dsn.hosts(url)) > 1:
            raise ValueError("lists several hosts, but the lag can be measured for one only")
        return url


def _services(settings: ReplicaSettings, kernel: "Services") -> Iterable[object]:
    if settings.read_database_url is None:
        return
    from app.store.engine import Database
    from app.wings.replica.service import Replica, ReplicaReader

    connections = kernel.database.pool().limit
    copy = Database(settings.read_database_url, pool_size=connections, find_placement=find_placement)
    replica = Replica(kernel.database, copy, settings.read_behind_seconds_max)
    yield ReplicaReader(replica, max(1, connections // READS_DIVISOR), kernel.observers.replica_read)


@asynccontextmanager
async def _lifespan(_: ReplicaSettings, services: "Services", __: asyncio.Event) -> AsyncIterator[None]:
    from app.wings.replica.service import ReplicaReader

    reads = [one for one in services.others if isinstance(one, ReplicaReader)]
    watching = [asyncio.create_task(one.replica.watch(services.observers.replica_check)) for one in reads]
    try:
        yield
    finally:
        for task in watching:
            task.cancel()


WING = Wing(settings=ReplicaSettings, services=_services, lifespan=_lifespan)
