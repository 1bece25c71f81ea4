"""Ports of processes that are told where to meet before one of them listens there."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from itertools import cycle, islice
from typing import Final

_FIRST, _COUNT = 20_000, 10_000
_ports: Final = islice(cycle(range(_FIRST, _FIRST + _COUNT)), 37 * os.getpid() % _COUNT, None)


def free_port() -> int:
    """
    Return a port at which nobody listens, another one each time.

    It is none of those that the kernel gives out by itself, which anybody may get before it is listened at; and each
    process begins its search elsewhere.
    """
    for port in _ports:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("a cycle does not end")
