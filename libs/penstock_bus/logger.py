"""Loggers that load structlog when they first speak: 70 ms that a shell command such as ``penstock ps`` never needs."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Callable, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structlog.stdlib import BoundLogger

UNCONFIGURED_LEVEL: Final = "warning"
"""The least that is written where nobody has configured structlog: in the command line and in programs of users."""


Listener = Callable[[str, "dict[str, Any]"], bool]
"""Is given an event and its fields before they are written; true: it has said to people what they should know of it."""
_listeners: list[Listener] = []


@contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """Give all events of these loggers to a listener first: that of the command line, which speaks in sentences."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


class _Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        return self._heard(method) if _listeners else self._written(method)

    def _heard(self, method: str) -> Callable[..., None]:
        def log(event: str, **fields: Any) -> None:
            if not any(listener(event, fields) for listener in _listeners):
                self._written(method)(event, **fields)

        return log

    def _written(self, method: str) -> Any:
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
