"""Sessions in shards over the nodes of a distributed database (docs/scaling.md)."""

from typing import TYPE_CHECKING, Final

from app.runtime.wing import Wing

if TYPE_CHECKING:
    import typer

    from app.store.driver import DriverConnection, Placement
    from app.store.engine import Database


SHARDS: Final = 32
"""The number of shards, unless another one is asked for."""


async def is_distributed(raw: "DriverConnection") -> bool:
    """Return whether the sessions of a database are in shards. Tables are distributed together, in one transaction."""
    if await raw.fetchval("SELECT to_regclass('pg_dist_partition')") is None:
        return False
    return bool(
        await raw.fetchval("SELECT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = to_regclass('sessions'))")
    )


async def _find_placement(raw: "DriverConnection", database: "Database") -> "Placement | None":
    if not await is_distributed(raw):
        return None
    from app.wings.shards.placement import Shards

    return Shards(database)


def _commands(app: "typer.Typer") -> None:
    from app.wings.shards.commands import distribute

    app.command()(distribute)


WING = Wing(commands=_commands, find_placement=_find_placement)
