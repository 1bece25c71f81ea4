"""
Locks around a fork: a child finds no state half changed, and no lock that nobody will release.

What has locks registers itself by :func:`guard_in_forks`. Before a fork, its locks are taken, and with them the state
is whole; afterwards the parent releases them, and the child makes new ones.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class ForkGuard(Protocol):
    """What has locks, and a state that a fork must not find half changed."""

    def before_fork(self) -> None:
        """Take the locks."""

    def after_fork_in_parent(self) -> None:
        """Release them."""

    def after_fork_in_child(self) -> None:
        """Make new ones: there is no other thread."""


_guarded: weakref.WeakValueDictionary[tuple[int, int], ForkGuard] = weakref.WeakValueDictionary()
_forking: list[ForkGuard] = []
_fork_lock = threading.Lock()
"""Held during a fork: another thread's fork waits for it, or both would have one list of what is locked."""


def guard_in_forks(guard: ForkGuard, *, layer: int) -> None:
    """
    Have a fork find an object in order, for as long as the object lives.

    Parameters
    ----------
    guard : ForkGuard
    layer : int
        Its place in the order of locks: what calls others while it holds its lock has a lower number than they have.
    """
    _guarded[layer, id(guard)] = guard


def release_guard(guard: ForkGuard, *, layer: int) -> None:
    """Leave an object alone in forks from now on: it is closed."""
    _guarded.pop((layer, id(guard)), None)


def _before_fork() -> None:
    _fork_lock.acquire()
    for reference in sorted(_guarded.valuerefs(), key=lambda one: one.key):
        guard = reference()
        if guard is not None:
            guard.before_fork()
            _forking.append(guard)


def _after_fork_in_parent() -> None:
    for guard in reversed(_forking):
        guard.after_fork_in_parent()
    _forking.clear()
    _fork_lock.release()


def _after_fork_in_child() -> None:
    global _fork_lock  # noqa: PLW0603 - the parent's is held, and nobody would release it here
    _fork_lock = threading.Lock()
    for guard in _forking:
        guard.after_fork_in_child()
    _forking.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
