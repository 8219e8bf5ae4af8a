"""Logs: structured, to standard error, one form for our own and for those of the libraries."""

import logging
import sys
from typing import Final

import structlog

from app.settings import Settings

LIBRARIES_LEAST: Final = logging.WARNING
# The default shows the values of all local variables: what users said, and keys. It also takes seconds to lay out.
_traceback: Final = structlog.dev.plain_traceback


def configure(settings: Settings) -> None:
    """Set up logging for the process, once."""
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    logging.basicConfig(level=max(level, LIBRARIES_LEAST), handlers=[handler], force=True)
