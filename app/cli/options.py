"""Helpers of the commands: settings from flags, logs, the database to use, and failures as one line.

Logs are structured, on standard error, and in the same form for the server and the libraries.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, TypeVar

import structlog
import typer

from app.core.errors import ContextError
from app.runtime import serve as serving
from app.runtime.settings import InvalidSetting, Settings, load
from app.runtime.supervise import DatabaseUnreachable
from app.runtime.wing import find_placement

if TYPE_CHECKING:
    from app.store.embedded import EmbeddedPostgres
    from app.store.engine import Database


DataDir = Annotated[Path | None, typer.Option(help="Folder of the embedded Postgres (PALIMPSEST_DATA_DIR).")]
DatabaseUrl = Annotated[
    str | None, typer.Option(help="A Postgres of your own instead of the embedded one (PALIMPSEST_DATABASE_URL).")
]

_T = TypeVar("_T")


def stop(message: str, status: int = 1) -> NoReturn:
    """End the command with a line on standard error."""
    typer.echo(f"palimpsest: {message}", err=True)
    raise typer.Exit(status)


def load_settings(**given: object) -> Settings:
    """Load the settings, flags before the environment, and set up logging; stop with a line on an invalid variable."""
    try:
        settings = load(**given)
    except InvalidSetting as error:
        stop(str(error))
    configure_logging(settings)
    return settings


@contextmanager
def open_database(settings: Settings, *, shared: bool = False) -> "Iterator[tuple[str, EmbeddedPostgres | None]]":
    """Yield the database's URL, and the embedded Postgres if the settings name no database; stop that one at the end.

    With `shared`, the embedded Postgres may already be running under another process and is then left running.
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
        serving.ignore_signals()
        postgres.stop()


def run_on_database(settings: Settings, use: "Callable[[Database], Awaitable[None]]") -> None:
    """Run `use` on the database, started and migrated if it is embedded, as the owner who sees every tenant's rows."""
    from app.store import migrate
    from app.store.engine import Database

    async def on(url: str) -> None:
        await serving.prepare(url, upgrade=settings.database_url is None)
        try:
            await migrate.check_owner(url)
        except migrate.TenantIsolationError as error:
            raise serving.CannotServe(str(error)) from None
        database = Database(url, pool_size=1, role=None, find_placement=find_placement)
        try:
            await use(database)
        finally:
            await database.close()

    with open_database(settings, shared=True) as (url, _):
        run(on(url))


def require_database(settings: Settings) -> Settings:
    """Return the settings, or stop if their database does not exist: a command that only reads must not create one."""
    if settings.database_url is None and not settings.data_dir.joinpath("postgres").exists():
        stop(f"there is no database in {settings.data_dir}: name its folder (PALIMPSEST_DATA_DIR or --data-dir)")
    return settings


def require_url(settings: Settings) -> str:
    """Return the database URL in the settings; stop if there is none."""
    if settings.database_url is None:
        stop("PALIMPSEST_DATABASE_URL is not set; `palimpsest serve` runs everything on an embedded Postgres")
    return settings.database_url


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine; on an expected failure, stop with its message as one line."""
    or_stop(lambda: asyncio.run(work))


def or_stop(work: Callable[[], _T]) -> _T:
    """Return the result of `work`; on an expected failure, stop with its message as one line."""
    try:
        return work()
    except (serving.CannotServe, DatabaseUnreachable) as error:
        stop(str(error))
    except ContextError as error:
        stop(error.detail)


LIBRARY_LEVEL_MIN: Final = logging.WARNING
QUEUE: Final = "pgqueuer"
REPEAT_SECONDS: Final = 60.0
# The default shows the values of all local variables, including users' content and keys, and takes seconds.
_traceback: Final = structlog.dev.plain_traceback


class _LossyLogger(structlog.WriteLogger):
    """A logger that drops lines it cannot write, such as on a full disk, so that logging never fails a request.

    Each line is written in one call with its line end, so that several processes can share a log.
    """

    def msg(self, message: str) -> None:
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class _OncePerMinute(logging.Filter):
    """Lets each kind of failure through once a minute: without a writable database, the queue logs ten per second."""

    def __init__(self) -> None:
        super().__init__()
        self._written_at: dict[tuple[str, object], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write the record."""
        kind = (str(record.msg), record.exc_info[0] if record.exc_info else None)
        if record.created - self._written_at.get(kind, 0.0) < REPEAT_SECONDS:
            return False
        self._written_at[kind] = record.created
        return True


def configure_logging(settings: Settings) -> None:
    """Set up logging for the process."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if settings.log_json
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_traceback)]
    )
    structlog.configure(
        processors=[*shared, *renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: _LossyLogger(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    logging.getLogger(QUEUE).addFilter(_OncePerMinute())
    logging.basicConfig(level=max(level, LIBRARY_LEVEL_MIN), handlers=[handler], force=True)
