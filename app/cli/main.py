"""The command line. Every expected failure is one line on standard error and a non-zero exit status.

A command imports its own modules when it runs, so that the others start faster.
"""

import asyncio
import json
import re
from datetime import UTC, datetime
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer
from typer.core import TyperGroup

from app.cli.options import (
    DatabaseUrl,
    DataDir,
    load_settings,
    open_database,
    or_stop,
    require_database,
    require_url,
    run,
    run_on_database,
    stop,
)
from app.core.lexicon.times import parse_time
from app.runtime import serve as serving
from app.runtime.settings import current_settings, data_dir_line, settings_lines
from app.runtime.wing import installed
from app.version import VERSION

if TYPE_CHECKING:
    from app.store.engine import Database
    from app.store.keys import KeyRow


keys = typer.Typer(no_args_is_help=True, help="Manage API keys. Only their hashes are stored.")


@keys.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="Name of the key, which says what it is for.")],
    tenant: Annotated[str, typer.Option(help="Tenant that the key belongs to; created if new.")] = "default",
    scope: Annotated[
        list[str] | None, typer.Option(help="ingest, read, audit or admin; repeatable. Default: ingest and read.")
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
    from app.tenants import Tenants

    until = _parse_time(expires)

    async def create(database: "Database") -> None:
        made = await Tenants(database, None).create_key(
            tenant, name, scope or ["ingest", "read"], expires_at=until, session_prefix=session_prefix
        )
        typer.echo(made.secret)
        typer.echo(f"key {made.key_id} for tenant {tenant!r}; it is not shown again", err=True)

    run_on_database(load_settings(data_dir=data_dir, database_url=database_url), create)


@keys.command("list")
def list_keys(data_dir: DataDir = None, database_url: DatabaseUrl = None) -> None:
    """List all keys, without their secrets."""
    from app.store import keys as key_store

    async def show(database: "Database") -> None:
        for key in await key_store.all_keys(database):
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
        if not await key_store.revoke_any(database, key_id):
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


ENTRY_POINTS: Final = "palimpsest.commands"
"""The entry points of other distributions' commands: functions with Typer's annotations."""
_PANELS: Final = {
    "Server": ("serve", "config"),
    "Agents": ("wrap", "doctor"),
    "Sessions": ("sessions", "context", "calls", "events", "explain"),
    "Recordings": ("replay", "bench", "import", "export"),
}
"""The commands that most users need, by their heading in the list of commands."""
_OPERATION: Final = "Operation"
"""The heading of all other commands."""
_LINE_BREAK: Final = re.compile(r"(?<!\n)\n(?!\n)")
"""A line break inside a paragraph, which Typer keeps in all paragraphs of a help but the first."""
_TOOLS: Final = frozenset({*_PANELS["Agents"], *_PANELS["Sessions"], *_PANELS["Recordings"], "verify"})
TOOLS: Final = "palimpsest-context-tools"
"""The distribution of these commands."""


class _Commands(TyperGroup):
    """The server's commands, and those of other distributions, which are imported only to run or list them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, by panel; of those in no panel, the server's first."""
        names = [*super().list_commands(ctx), *sorted(found.name for found in entry_points(group=ENTRY_POINTS))]
        first = [name for panel in _PANELS.values() for name in panel if name in names]
        return [*first, *(name for name in names if name not in first)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command with its panel; stop with a line that says how to install it if it is a missing tool."""
        command = self._find(ctx, cmd_name)
        if command is not None:
            command.rich_help_panel = next((panel for panel, names in _PANELS.items() if cmd_name in names), _OPERATION)
            command.help = _LINE_BREAK.sub(" ", command.help or "")
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help; without the tools, say where they are."""
        if not entry_points(group=ENTRY_POINTS):
            self.epilog = f"The extra `tools` of palimpsest-context adds {', '.join(sorted(_TOOLS))}."
        super().format_help(ctx, formatter)

    def _find(self, ctx: Any, cmd_name: str) -> Any:
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        for found in entry_points(group=ENTRY_POINTS, name=cmd_name):
            single = typer.Typer(add_completion=False)
            single.command(cmd_name)(found.load())
            return typer.main.get_command(single)
        if cmd_name in _TOOLS:
            stop(f"{cmd_name} is not installed: it is in {TOOLS} (in a clone: .venv/bin/palimpsest {cmd_name})")
        return None


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(keys, name="keys")

Host = Annotated[str | None, typer.Option(help="Address to listen on (PALIMPSEST_HOST).")]
Port = Annotated[int | None, typer.Option(help="Port to listen on (PALIMPSEST_PORT).")]
Processes = Annotated[int | None, typer.Option(help="Number of API processes (PALIMPSEST_PROCESSES).")]


def _flag_names(**flags: object) -> frozenset[str]:
    """Return the names of the settings that a flag sets."""
    return frozenset(name for name, value in flags.items() if value is not None)


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
    """Run everything: the embedded Postgres (unless a database is given), migrations, API and worker."""
    serving.exit_on_signals()
    serving.print_status("starting")
    settings = load_settings(host=host, port=port, data_dir=data_dir, database_url=database_url, processes=processes)
    listener = or_stop(lambda: serving.listen(settings))
    if settings.database_url is None:
        serving.print_status(data_dir_line(settings, _flag_names(data_dir=data_dir)))
    with open_database(settings) as (url, postgres):
        run(serving.make_database_ready(settings, url, upgrade=True, listener=listener))
        with serving.preload(settings, api=True, worker=True):
            serving.supervise(settings, url, listener, worker=True, postgres=postgres)


@app.command()
def api(host: Host = None, port: Port = None, database_url: DatabaseUrl = None, processes: Processes = None) -> None:
    """Run only the API, on a migrated database."""
    serving.exit_on_signals()
    serving.print_status("starting")
    settings = load_settings(host=host, port=port, database_url=database_url, processes=processes)
    url = require_url(settings)
    listener = or_stop(lambda: serving.listen(settings))
    run(serving.make_database_ready(settings, url, upgrade=False, listener=listener))
    with serving.preload(settings, api=True, worker=False):
        if settings.processes == 1:
            serving.run_api(settings, url, listener)
        else:
            serving.supervise(settings, url, listener, worker=False)


@app.command()
def worker(
    database_url: DatabaseUrl = None,
    healthy: Annotated[
        bool,
        typer.Option(
            "--healthy",
            help="Start no worker; exit with 0 if one on this machine is connected to the database, else with 1.",
        ),
    ] = False,
) -> None:
    """Run only a worker, on a migrated database. Several may run at the same time."""
    if healthy:
        _check_worker(require_url(load_settings(database_url=database_url)))
        return
    serving.exit_on_signals()
    serving.print_status("starting")
    settings = load_settings(database_url=database_url)
    url = require_url(settings)
    run(serving.make_database_ready(settings, url, upgrade=False))
    with serving.preload(settings, api=False, worker=True):
        serving.run_worker(settings, url)


@app.command()
def migrate(
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    back_to: Annotated[
        str | None,
        typer.Option(metavar="SCHEMA", help="Undo all migrations after this schema, to run an earlier version."),
    ] = None,
) -> None:
    """Bring the database to this version's schema, or back to an earlier one."""
    settings = load_settings(data_dir=data_dir, database_url=database_url)
    with open_database(settings) as (url, _):
        run(serving.prepare(url, upgrade=True) if back_to is None else serving.downgrade(url, back_to))


@app.command()
def config(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    database_url: DatabaseUrl = None,
    processes: Processes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of columns.")] = False,
) -> None:
    """Print every setting with its value and the value's origin: flag, environment, file or default.

    Takes the flags of serve, to show the settings that serve would run with. Secrets are masked.
    """
    flags = {"host": host, "port": port, "data_dir": data_dir, "database_url": database_url, "processes": processes}
    found = current_settings(load_settings(**flags), _flag_names(**flags))
    if as_json:
        typer.echo(json.dumps({one.variable: {"value": one.value, "origin": one.origin} for one in found}))
        return
    for line in settings_lines(found):
        typer.echo(line)


for _wing in installed():
    _wing.commands(app)


def _check_worker(url: str) -> None:
    from app.store import jobs

    missing = asyncio.run(jobs.find_worker_problem(url))
    if missing is not None:
        stop(missing)


def main() -> None:
    """Run the command line."""
    app()
