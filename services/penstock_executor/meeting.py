"""Where the processes of a gang meet: the variables by which ``torch.distributed`` and its like find each other."""

from __future__ import annotations

import socket
import zlib
from typing import Final

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
