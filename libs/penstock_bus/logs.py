"""Logs as events: structlog to standard error, as JSON lines or for a console."""

from __future__ import annotations

import logging
import os
import sys
from io import StringIO
from typing import Final, Literal, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, ExcInfo, Processor

from penstock_log.text import escaped, escaped_lines

_QUOTED: Final = frozenset(" \t=\r\n\"'")
"""With any of these in it, the renderer shows a value as Python writes it, which is harmless."""


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
    return [seen, structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=_traceback)]


def seen(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Escape what a console would obey: words of others, which the renderer shows as they are unless it quotes them."""
    return {name: escaped(value) if _is_bare(name, value) else value for name, value in event.items()}


def _is_bare(name: str, value: object) -> bool:
    return isinstance(value, str) and (name == "event" or _QUOTED.isdisjoint(value))


def _traceback(out: TextIO, exc_info: ExcInfo) -> None:
    """Write a traceback without local variables, for passwords are among them."""
    text = StringIO()
    structlog.dev.plain_traceback(text, exc_info)
    out.write(escaped_lines(text.getvalue()))
