"""
The claim of an executor to its node's name: two machines of one name must not answer each other's joining for ever.

Of two executors that run as one node, each would take the other's ``node.joined`` for a reason to join again, hundreds
of times a second, and end the other's runs. So an executor that finds its node joined by another one listens for that
one's heartbeats first. One that was started before on the same folder is gone for sure, since the folder is locked, and
nothing is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import msgspec

from penstock_bus import Bus
from penstock_bus.settings import SettingsError
from penstock_cluster.nodes import Node
from penstock_log import subjects
from penstock_log.request_bodies import NodeHeartbeat

LISTEN_BEATS: Final = 3
"""For so many heartbeats another executor of this name is waited for."""
_FILE: Final = "boot"


class NameClaim:
    """
    The right of one executor to be its node.

    Parameters
    ----------
    data : Path
        The executor's folder, which it holds alone.
    boot : str
        Names this start of the executor; incarnations of the node begin with it.
    heartbeat_s : float
        The most seconds between two heartbeats of another executor.
    """

    def __init__(self, bus: Bus, node_id: str, data: Path, boot: str, heartbeat_s: float) -> None:
        self._bus, self._node_id, self._file, self._boot = bus, node_id, data / _FILE, boot
        self._listen_s = LISTEN_BEATS * heartbeat_s
        try:
            self._own = {boot, self._file.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError):
            self._own = {boot}

    async def check(self, node: Node | None) -> None:
        """
        Check that no other executor runs as this node, before it joins.

        Raises
        ------
        SettingsError
            If another one does; the message says where, and what to do.
        """
        if node is not None and node.present and _boot_of(node.incarnation) not in self._own:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._listen_s):
                    await self._hear_another()
                where = node.labels.get("address", "another machine")
                raise SettingsError(
                    f"another executor runs as node {self._node_id}, on {where}: each node needs a name of its own; "
                    "give this one another by `penstock node join --name`, or as PENSTOCK_EXECUTOR_NODE_ID"
                )
        await asyncio.to_thread(self._file.write_text, self._boot, encoding="utf-8")

    async def _hear_another(self) -> None:
        """Return at the first heartbeat of another executor of this name."""
        async for _, body in self._bus.subscribe(subjects.heartbeat(self._node_id)):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                if _boot_of(msgspec.json.decode(body, type=NodeHeartbeat).incarnation) not in self._own:
                    return


def _boot_of(incarnation: str) -> str:
    return incarnation.partition("-")[0]
