"""Where the processes of a gang meet: the variables by which ``torch.distributed`` and its like find each other."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from penstock_events.agent import Env
from penstock_executor.launch import Member
from penstock_executor.local import Key
from penstock_policies.cluster import Cluster

_FIRST_PORT: Final = 20_000
_PORTS: Final = 12_000  # below the ports that kernels hand out by themselves, which start at 32,768


class Meetings:
    """The places where this node's gangs meet: no two of its runs have the same."""

    def __init__(self) -> None:
        self._ports: dict[Key, int] = {}

    def arrange(self, key: Key, gang: list[Member], cluster: Cluster) -> dict[str, str]:
        """
        Return where a gang meets, the same for all of its processes.

        On one node the port is one that nobody has: neither another run of this node, nor a listener, and it is not
        among those that the kernel gives to connections. Over several, each node works out the same number from job
        and epoch; that it is free on rank 0's node is likely, not certain: a gang that meets a taken port fails, and
        if it is retried it has another epoch, hence another number.
        """
        first = cluster.nodes.get(gang[0].node_id)
        alone = len({member.node_id for member in gang}) == 1
        address = "127.0.0.1" if alone or first is None else first.labels.get("address", "127.0.0.1")
        port = self._own_port(key) if alone and len(gang) > 1 else derived_port(*key)
        return {
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(len(gang)),
            Env.WORLD_SIZE: str(len(gang)),
        }

    def over(self, key: Key) -> None:
        """A run has ended: others may have its port."""
        self._ports.pop(key, None)

    def _own_port(self, key: Key) -> int:
        """Return the first free port after the derived one, so that executors of one host seldom look at the same."""
        begin, taken = derived_port(*key) - _FIRST_PORT, set(self._ports.values())
        ports = (_FIRST_PORT + (begin + i) % _PORTS for i in range(_PORTS))
        port = next((port for port in ports if port not in taken and _is_free(port)), derived_port(*key))
        self._ports[key] = port
        return port


def reachable_address(bus_url: str) -> str:
    """
    Return the address by which other machines reach this one.

    It is that of the network interface that leads to the bus, since the other nodes reach the bus as well. A bus on
    this very machine says nothing about networks: then it is that of the interface that leads elsewhere.

    Parameters
    ----------
    bus_url : str
        One server or several with commas between them; empty where there is none.

    Returns
    -------
    str
        An IPv4 address where there is one, else an IPv6 address; ``127.0.0.1`` on a machine without a network.

    Notes
    -----
    Connecting a datagram socket sends nothing: the kernel only looks up the route. A name is resolved, which may block.
    """
    hosts = [urlsplit(url if "//" in url else f"//{url}").hostname for url in bus_url.split(",")]
    for host in (*hosts, *_ELSEWHERE):
        for source in _sources(host) if host else ():
            if source not in {"0.0.0.0", "::", "::1"} and not source.startswith("127."):  # noqa: S104 - not listening
                return source
    return "127.0.0.1"


_ELSEWHERE: Final = ("192.0.2.1", "2001:db8::1")
"""Addresses of documentation (RFC 5737, RFC 3849): nobody has them, so the default route leads there."""


def _sources(host: str) -> Iterator[str]:
    """Yield the addresses of this machine from which a host is reached, IPv4 first."""
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return
    for family, kind, protocol, _, address in sorted(found, key=lambda one: one[0] != socket.AF_INET):
        try:
            with socket.socket(family, kind, protocol) as sounding:
                sounding.connect(address)
                yield str(sounding.getsockname()[0])
        except OSError:
            continue  # there is no route, or no such family here


def derived_port(job_id: str, epoch: int) -> int:
    """Return the port that every node of a gang works out by itself."""
    return _FIRST_PORT + zlib.crc32(f"{job_id}/{epoch}".encode()) % _PORTS


def _is_free(port: int) -> bool:
    """Say whether nobody has the port at this moment, at any of the host's addresses."""
    with socket.socket() as listener:
        try:
            listener.bind(("", port))
        except OSError:
            return False
    return True
