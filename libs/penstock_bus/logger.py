"""Loggers that load structlog when they first speak: 70 ms that a shell command such as ``penstock ps`` never needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger


class _Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        import structlog  # noqa: PLC0415 - that is the point

        return getattr(structlog.get_logger(self._name), method)


def get_logger(name: str) -> BoundLogger:
    """Return what ``structlog.get_logger`` returns, without loading structlog yet."""
    return cast("BoundLogger", _Lazy(name))
