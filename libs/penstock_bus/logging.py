"""Logs as events: structlog to standard error, as JSON lines or for a console."""

from __future__ import annotations

import logging
import os
import sys
from typing import Literal

import msgspec
import structlog
from structlog.typing import Processor


class Logging(msgspec.Struct, frozen=True, kw_only=True):
    """``PENSTOCK_LOG_FORMAT`` and ``PENSTOCK_LOG_LEVEL``, or the table ``[log]``."""

    format: Literal["console", "json"] = "console"
    level: Literal["debug", "info", "warning", "error"] = "info"


def configure(settings: Logging) -> None:
    """Send structlog's events and the standard library's records to standard error, in one form."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(settings.level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(settings)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())


def _rendering(settings: Logging) -> list[Processor]:
    if settings.format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    colors = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    plain = structlog.dev.plain_traceback  # the default shows local variables, passwords among them
    return [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)]
