"""
Penstock: what users import and type.

The names are loaded when they are first used, so that a training script pays for the session only, and a shell command
for the client only.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # type checkers know the name; importing it from typing costs ten times as long as all the rest
if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.sessions.loop import Session, session
    from penstock.sessions.rates import Resize
    from penstock.sessions.setup import SessionError
    from penstock_events.spec import Batch, JobSpec, SweepSpec

_HOMES = {
    "Batch": "penstock_events.spec",
    "Client": "penstock.client",
    "JobSpec": "penstock_events.spec",
    "Resize": "penstock.sessions.rates",
    "Session": "penstock.sessions.loop",
    "SessionError": "penstock.sessions.setup",
    "SweepSpec": "penstock_events.spec",
    "session": "penstock.sessions.loop",
}

__all__ = ["Batch", "Client", "JobSpec", "Resize", "Session", "SessionError", "SweepSpec", "session"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
