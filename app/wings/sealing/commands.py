"""The operator's commands on content keys."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

from app.cli.options import DatabaseUrl, DataDir, load_settings, require_database, run_on_database, stop
from app.wings.sealing import SealingSettings

if TYPE_CHECKING:
    from app.store.engine import Database

contents = typer.Typer(no_args_is_help=True, help="Manage the keys that tenants' contents are encrypted with.")


@contents.command("new-key")
def new_operator_key() -> None:
    """Print a new key for PALIMPSEST_ENCRYPTION_KEY. It is stored nowhere; without it no content can be read."""
    from cryptography.fernet import Fernet

    typer.echo(Fernet.generate_key().decode("ascii"))


@contents.command("list")
def list_content_keys(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """List the tenants whose contents are encrypted, and those whose key was dropped."""
    from app.wings.sealing import service

    async def show(database: "Database") -> None:
        for key in await service.all_keys(database):
            state = f"dropped {key.dropped_at:%Y-%m-%d}" if key.dropped_at else f"since {key.created_at:%Y-%m-%d}"
            typer.echo(f"{key.tenant}  {state}")

    run_on_database(require_database(load_settings(data_dir=data_dir, database_url=database_url)), show)


@contents.command("rewrap")
def rewrap_content_keys(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Encrypt all tenants' keys with the first key of PALIMPSEST_ENCRYPTION_KEY; the others can then be removed."""
    from app.wings.sealing import service

    settings = require_database(load_settings(data_dir=data_dir, database_url=database_url))
    key = cast(SealingSettings, settings).encryption_key
    if key is None:
        stop("PALIMPSEST_ENCRYPTION_KEY is not set")

    async def wrap(database: "Database") -> None:
        typer.echo(f"wrapped the keys of {await service.rewrap(database, key.get_secret_value())} tenants")

    run_on_database(settings, wrap)


@contents.command("drop-key")
def drop_content_key(
    tenant: Annotated[str, typer.Argument(help="The tenant whose contents are erased.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Drop a tenant's content key, which erases its contents for good, in the database and in backups made since."""
    from app.wings.sealing import service

    async def drop(database: "Database") -> None:
        if not await service.drop_key(database, tenant):
            stop(f"tenant {tenant!r} has no content key")
        typer.echo(f"dropped the key of tenant {tenant!r}; it takes effect everywhere within two seconds")

    run_on_database(require_database(load_settings(data_dir=data_dir, database_url=database_url)), drop)
