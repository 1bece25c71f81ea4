"""
Control groups of warm servers of other users than the executor's: one for each user, beside those of his runs.

A server outlives the run for which it began, and serves others, so it is in no run's group. In its own it may hold as
much memory as all servers together, may have as many processes as a run, and may open no GPU.
"""

from __future__ import annotations

import contextlib

from penstock_cluster import DeviceError
from penstock_cluster.device_backend import MemoryCaps
from penstock_executor.launchers.confinement import Confinement
from penstock_executor.launchers.warm_command import StartsCold


class ServerGroups:
    """
    The groups of one executor, which are made where runs have groups.

    Parameters
    ----------
    most_bytes : int
        The most memory of each.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._groups: dict[int, str] = {}
        self.caps: MemoryCaps | None = None

    def confine(self, confined: Confinement) -> Confinement:
        """
        Return to what the server of a program is confined, which is confined to this.

        Raises
        ------
        StartsCold
            If there can be no group for it.
        """
        shared = confined._replace(cgroup="", data_bytes=())
        if not confined.cgroup or confined.uid < 0:
            return shared
        if self.caps is None:
            raise StartsCold("its server would be in no control group, as the program is")
        if confined.uid not in self._groups:
            try:
                self._groups[confined.uid] = self._group(self.caps, confined)
            except DeviceError as error:
                raise StartsCold(f"its server cannot have a control group: {error}") from error
        return shared._replace(cgroup=self._groups[confined.uid])

    def _group(self, caps: MemoryCaps, confined: Confinement) -> str:
        name = _name(confined.uid)
        caps.command(name, (), self._most_bytes)
        caps.bound(name, tasks=confined.most_tasks)
        with contextlib.suppress(DeviceError):  # where the kernel guards no GPU, that of a run is not guarded either
            caps.bound(name, gpus=())
        return caps.group(name)

    def close(self) -> None:
        """Remove those in which nothing is left; their servers have been ended."""
        groups, self._groups = self._groups, {}
        for uid in groups:
            if self.caps is not None:
                self.caps.end(_name(uid))
                self.caps.forget(_name(uid))


def _name(uid: int) -> str:
    return f"warm-{uid}"
