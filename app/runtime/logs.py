"""Structured logs to standard error, in the same form for the server and the libraries."""

import logging
import sys
from contextlib import suppress
from typing import Final

import structlog

from app.runtime.settings import Settings

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


def configure(settings: Settings) -> None:
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
