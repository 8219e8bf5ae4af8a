"""The operator's commands on a database: API keys."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from app.cli.options import DatabaseUrl, DataDir, load_settings, require_database, run_on_database, stop
from app.core.lexicon.times import parse_time

if TYPE_CHECKING:
    from app.store.engine import Database
    from app.store.keys import KeyRow

keys = typer.Typer(no_args_is_help=True, help="Manage API keys. Only their hashes are stored.")


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="Name of the key, which says what it is for.")],
    tenant: Annotated[str, typer.Option(help="Tenant that the key belongs to; created if new.")] = "default",
    scope: Annotated[
        list[str] | None,
        typer.Option(help="ingest, read, audit or admin; repeatable. Default: ingest and read."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="Expiry, as 2027-01-31 or 2027-01-31T12:00:00Z; default: never.")
    ] = None,
    session_prefix: Annotated[
        str | None, typer.Option(help="Allow only sessions whose ids begin with this; default: all.")
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Create a key and print it; it is not shown again. Once there is a key, the server requires one."""
    from app.services.tenants import Tenants

    until = _parse_time(expires)

    async def create(database: "Database") -> None:
        made = await Tenants(database, None).create_key(
            tenant, name, scope or ["ingest", "read"], expires_at=until, session_prefix=session_prefix
        )
        typer.echo(f"{made.secret}")
        typer.echo(f"key {made.key_id} for tenant {tenant!r}; it is not shown again", err=True)

    run_on_database(load_settings(data_dir=data_dir, database_url=database_url), create)


@keys.command("list")
def list_keys(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """List all keys, without their secrets."""
    from app.store import keys as key_store

    async def show(database: "Database") -> None:
        for key in await key_store.page(database):
            used = f"used {key.last_used_at:%Y-%m-%dT%H:%MZ}" if key.last_used_at else "never used"
            bound = f"sessions {key.session_prefix}…" if key.session_prefix else "all sessions"
            typer.echo(
                f"{key.id}  {key.tenant}  {key.name}  {','.join(key.scopes)}  {_key_state(key)}  {bound}  {used}"
            )

    run_on_database(require_database(load_settings(data_dir=data_dir, database_url=database_url)), show)


@keys.command("revoke")
def revoke_key(
    key_id: Annotated[UUID, typer.Argument(help="Id of the key, as palimpsest keys list shows it.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Revoke a key. It stops working everywhere within two seconds."""
    from app.store import keys as key_store

    async def revoke(database: "Database") -> None:
        if not await key_store.revoke(database, key_id):
            stop(f"there is no key that can be revoked with the id {key_id}")

    run_on_database(require_database(load_settings(data_dir=data_dir, database_url=database_url)), revoke)


def _key_state(key: "KeyRow") -> str:
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at:%Y-%m-%d}"
    if key.expires_at is None:
        return "works"
    word = "expired" if key.expires_at <= datetime.now(UTC) else "works until"
    return f"{word} {key.expires_at:%Y-%m-%dT%H:%MZ}"


def _parse_time(given: str | None) -> datetime | None:
    """Parse a time, in UTC if it names no zone; stop if it is invalid."""
    if given is None:
        return None
    try:
        return parse_time(given)
    except ValueError:
        stop(f"{given!r} is not a valid time: write it as 2027-01-31 or 2027-01-31T12:00:00Z")
