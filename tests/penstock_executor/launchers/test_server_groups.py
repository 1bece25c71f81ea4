"""In which control groups the warm servers of other users are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import pytest

from penstock_cluster import DeviceError
from penstock_cluster.device_backend import MemoryUsage
from penstock_executor.launchers.confinement import Confinement
from penstock_executor.launchers.server_groups import ServerGroups
from penstock_executor.launchers.warm_command import StartsCold

ALICE = Confinement(user="alice", uid=1001, gid=1001, cgroup="/groups/j1-1-0", most_tasks=9, data_bytes=(1, 2))


class Groups:
    """Remembers what it was told, and may refuse something."""

    name: Literal["cgroup", "rlimit"] = "cgroup"
    reason = ""

    def __init__(self, refuses: str = "") -> None:
        self.told: list[tuple[object, ...]] = []
        self._refuses = refuses

    def _note(self, what: str, *rest: object) -> None:
        self.told.append((what, *rest))
        if what == self._refuses:
            raise DeviceError("the kernel says no")

    def command(self, key: str, argv: Sequence[str], cap_bytes: int, most_bytes: int = 0) -> list[str]:
        del most_bytes
        self._note("command", key, cap_bytes)
        return list(argv)

    def group(self, key: str) -> str:
        return f"/groups/{key}"

    def bound(self, key: str, *, tasks: int = 0, gpus: Collection[int] | None = None) -> None:
        self._note("tasks" if gpus is None else "gpus", key, tasks if gpus is None else gpus)

    def set_cpus(self, key: str, cpus: float) -> None:
        self._note("cpus", key, cpus)

    def change(self, key: str, leader: int, cap_bytes: int) -> None:
        self._note("change", key, leader, cap_bytes)

    def usage(self, key: str, leader: int) -> MemoryUsage:
        del key, leader
        return MemoryUsage()

    def end(self, key: str) -> None:
        self._note("end", key)

    def forget(self, key: str) -> None:
        self._note("forget", key)


def test_a_users_servers_are_in_a_group_of_his_that_opens_no_gpu_and_goes_with_them() -> None:
    groups, caps = ServerGroups(77), Groups()
    groups.caps = caps
    for run in ("j1-1-0", "j2-1-0"):
        confined = groups.confine(ALICE._replace(cgroup=f"/groups/{run}"))
        assert confined == ALICE._replace(cgroup="/groups/warm-1001", data_bytes=())
    assert caps.told == [("command", "warm-1001", 77), ("tasks", "warm-1001", 9), ("gpus", "warm-1001", ())]
    groups.close()
    assert caps.told[3:] == [("end", "warm-1001"), ("forget", "warm-1001")]


def test_a_server_has_no_group_where_runs_have_none_and_where_it_is_the_executors_own() -> None:
    groups, caps = ServerGroups(77), Groups()
    groups.caps = caps
    assert groups.confine(ALICE._replace(cgroup="")).cgroup == ""
    assert groups.confine(ALICE._replace(uid=-1)).cgroup == ""
    assert caps.told == []


@pytest.mark.parametrize("refuses", ["command", "tasks"])
def test_there_is_no_server_where_it_would_not_be_held_as_its_programs_are(refuses: str) -> None:
    groups = ServerGroups(77)
    with pytest.raises(StartsCold, match="its server would be in no control group"):
        groups.confine(ALICE)
    groups.caps = Groups(refuses)
    with pytest.raises(StartsCold, match="cannot have a control group: the kernel says no"):
        groups.confine(ALICE)


def test_where_the_kernel_guards_no_gpu_a_server_is_as_a_run() -> None:
    groups = ServerGroups(77)
    groups.caps = Groups("gpus")
    assert groups.confine(ALICE).cgroup == "/groups/warm-1001"
