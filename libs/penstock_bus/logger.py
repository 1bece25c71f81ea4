"""Loggers that load structlog when they first speak: 70 ms that a shell command such as ``penstock ps`` never needs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

UNCONFIGURED_LEVEL: Final = "warning"
"""The least that is written where nobody has configured structlog: in the command line and in programs of users."""


class _Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import structlog  # noqa: PLC0415 - that is the point

        if structlog.is_configured():
            return getattr(structlog.get_logger(self._name), method)
        # structlog's own default is standard output, which belongs to the program, or to the job whose output it shows
        from penstock_bus.logs import seen  # noqa: PLC0415 - as above

        *before, rendering = structlog.get_config()["processors"]
        plain = structlog.wrap_logger(
            structlog.PrintLogger(sys.stderr),
            processors=[*before, seen, rendering],
            wrapper_class=structlog.make_filtering_bound_logger(UNCONFIGURED_LEVEL),
        )
        return getattr(plain, method)


def get_logger(name: str) -> BoundLogger:
    """
    Return what ``structlog.get_logger`` returns, without loading structlog yet.

    Until somebody configures structlog, warnings and errors go to standard error and the rest nowhere.
    """
    return cast("BoundLogger", _Lazy(name))
