"""What runs may hold of the devices that they share, and who is asked to see to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from penstock_cluster import DeviceError
from penstock_cluster.device_backend import MemoryUsage
from penstock_cluster.host_limits import HostCapacity
from penstock_executor import memory_limits
from penstock_executor.launchers.environment import LaunchSite
from penstock_executor.memory_limits import HOST_LEAST_BYTES, MemoryLimits
from penstock_executor.process_host import ProcessHost
from penstock_executor.run_state import LocalRun, RunProcess
from penstock_log import Device, Job, JobSpec
from penstock_log.agent_protocol import HoldMemory

MIB = 2**20
KEY = ("j1", 1)
HOST = Device(index=0, kind="fast", memory_bytes=1024 * MIB, backend="emulated")
GPU = Device(index=1, kind="h100", memory_bytes=1000 * MIB, backend="cuda", uuid="GPU-1")


class Enforcer:
    """Remembers what it was told."""

    name: Literal["cgroup", "rlimit"] = "rlimit"
    reason = ""

    def __init__(self) -> None:
        self.changes: list[tuple[str, int, int]] = []
        self.forgotten: list[str] = []
        self.ended: list[str] = []
        self.killed = 0
        self.bounds: list[tuple[str, int, Collection[int] | None]] = []
        self.refuses = False
        self.cpus: dict[str, float] = {}

    def set_cpus(self, key: str, cpus: float) -> None:
        self.cpus[key] = cpus

    def command(self, key: str, argv: Sequence[str], cap_bytes: int, most_bytes: int = 0) -> list[str]:
        return ["capped", key, str(cap_bytes), str(most_bytes), *argv]

    def bound(self, key: str, *, tasks: int = 0, gpus: Collection[int] | None = None) -> None:
        self.bounds.append((key, tasks, gpus))
        if gpus is not None and self.refuses:
            raise DeviceError("the kernel says no")

    def group(self, key: str) -> str:
        return f"/groups/{key}"

    def change(self, key: str, leader: int, cap_bytes: int) -> None:
        self.changes.append((key, leader, cap_bytes))

    def usage(self, key: str, leader: int) -> MemoryUsage:
        del key, leader
        return MemoryUsage(killed=self.killed)

    def end(self, key: str) -> None:
        self.ended.append(key)

    def forget(self, key: str) -> None:
        self.forgotten.append(key)


@pytest.fixture
def enforcer() -> Enforcer:
    return Enforcer()


@pytest.fixture
def limits(enforcer: Enforcer) -> MemoryLimits:
    return MemoryLimits([HOST, GPU], enforcer)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own that holds 100 MiB."""
    code = "kept = bytearray(b'x') * (100 << 20); print('up', flush=True); input()"
    started = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert started.stdout is not None
    started.stdout.readline()
    yield started
    started.communicate(b"\n")


def test_a_run_that_has_its_devices_alone_is_told_nothing_and_kept_to_nothing(limits: MemoryLimits) -> None:
    assert limits.environment(KEY, (0,)) == {}
    assert limits.command(KEY, 0, (0,), ("true",)) == ["true"]
    assert limits.broken(KEY, 0, 0, os.getpid()) == ""


def test_an_opaque_job_gets_its_part_of_each_device(limits: MemoryLimits) -> None:
    spec = JobSpec(name="j", command=("true",), sharing="fraction", fraction=0.25)
    limits.set_fraction(Job(id="j1", spec=spec, submitted_s=0.0, epoch=1), (0, 1))
    assert limits.caps == {KEY: {0: 256 * MIB, 1: 250 * MIB}}
    assert limits.environment(KEY, (0,))["PENSTOCK_MEMORY_BYTES"] == str(256 * MIB)
    assert limits.environment(KEY, (1,))["PENSTOCK_MEMORY_FRACTION"] == "0.25"


def test_the_hosts_memory_is_capped_by_the_kernel_and_a_gpus_by_what_allocates(limits: MemoryLimits) -> None:
    limits.caps[KEY] = {0: 100 * MIB, 1: 200 * MIB}
    cap, most = 100 * MIB + HOST_LEAST_BYTES, 1024 * MIB + HOST_LEAST_BYTES
    assert limits.command(KEY, 0, (0,), ("true",)) == ["capped", "j1-1-0", str(cap), str(most), "true"]
    assert limits.command(KEY, 1, (1,), ("true",)) == ["true"]
    assert limits.environment(KEY, (1,), framework_bytes=50 * MIB)["PENSTOCK_MEMORY_FRACTION"] == "0.15"


def test_a_cap_that_changes_is_changed_for_processes_that_run(limits: MemoryLimits, enforcer: Enforcer) -> None:
    limits.caps[KEY] = {0: 100 * MIB, 1: 200 * MIB}
    limits.change(KEY, 0, (0,), leader=77)
    limits.change(KEY, 1, (1,), leader=78)
    assert enforcer.changes == [("j1-1-0", 77, 100 * MIB + HOST_LEAST_BYTES)]


def test_what_an_allocator_has_to_keep_to_is_told_of_gpus_alone(limits: MemoryLimits) -> None:
    assert limits.fraction(KEY, (1,)) is None
    limits.caps[KEY] = {0: 100 * MIB, 1: 200 * MIB}
    limits.framework_bytes[KEY] = 50 * MIB
    assert limits.fraction(KEY, (0,)) is None
    assert limits.fraction(KEY, (1,)) == 0.15
    limits.forget(KEY, {0: None})
    assert limits.framework_bytes == {}


def test_who_holds_more_than_its_cap_is_found(limits: MemoryLimits, process: subprocess.Popen[bytes]) -> None:
    limits.caps[KEY] = {0: 200 * MIB}
    assert limits.broken(KEY, 0, 0, process.pid) == ""
    limits.caps[KEY] = {0: 20 * MIB}
    assert limits.broken(KEY, 0, 0, process.pid).endswith("MiB of device 0, where it may hold 20 MiB")


def test_where_the_kernel_counts_nobody_else_does(
    limits: MemoryLimits, enforcer: Enforcer, process: subprocess.Popen[bytes]
) -> None:
    enforcer.name, limits.caps[KEY] = "cgroup", {0: 20 * MIB}
    assert limits.broken(KEY, 0, 0, process.pid) == ""
    assert limits.killed(KEY, 0, (0,)) == ""
    enforcer.killed = 1
    assert (
        limits.killed(KEY, 0, (0,))
        == "rank 0 wanted more than the 84 MiB that it may hold, and was ended by the kernel"
    )


def test_what_was_made_for_a_run_goes_with_it(limits: MemoryLimits, enforcer: Enforcer) -> None:
    limits.caps[KEY] = {0: 20 * MIB}
    limits.forget(KEY, {0: None, 2: None})
    limits.forget(("j2", 1), {0: None})
    assert (enforcer.forgotten, limits.caps) == (["j1-1-0", "j1-1-2"], {})


def test_a_gpu_that_can_be_read_no_more_takes_nobody_down_but_its_own_jobs(limits: MemoryLimits) -> None:
    class Lost:
        def held(self, device: Device, pids: Iterable[int]) -> dict[int, int]:
            raise DeviceError(f"{device.uuid} cannot be read to say what {list(pids)} hold")

    limits._accounting["cuda"] = Lost()
    limits.caps[KEY] = {GPU.index: 10 * MIB}
    assert limits.held_bytes(GPU.index, os.getpid()) == 0
    assert limits.broken(KEY, 0, GPU.index, os.getpid()) == ""


class Heard:
    """A connection that remembers what was said over it."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def send(self, message: object) -> None:
        self.said.append(message)


def test_each_process_on_a_gpu_is_told_what_it_may_hold_by_now(limits: MemoryLimits, tmp_path: Path) -> None:
    site = LaunchSite(node_id="n1", devices=(HOST, GPU), socket="", checkpoints=tmp_path, cwd="")
    nothing: Any = lambda *_: None  # noqa: E731 - one for each callable that plays no part here
    host = ProcessHost(site, tmp_path, clock=lambda: 0.0, watch=nothing, report=nothing, wake=nothing, limits=limits)
    run = LocalRun(job_id="j1", epoch=1, devices=(0, 1), world_size=2, ranks={0: RunProcess(), 1: RunProcess()})
    lines: dict[Any, Any] = {(KEY, rank): Heard() for rank in (0, 1)}
    host.connections = lines
    host.send_caps(run)
    limits.caps[KEY] = {0: 100 * MIB, 1: 250 * MIB}
    host.send_caps(run)
    assert [lines[KEY, rank].said for rank in (0, 1)] == [[], [HoldMemory(fraction=0.25)]]


# --- the host's memory, of those who have their devices alone


def hosted(enforcer: Enforcer, **fields: Any) -> MemoryLimits:
    """Limits of a node whose two devices come with 2 GiB and 2 processors each, with a job on it."""
    limits = MemoryLimits([HOST, GPU], enforcer, HostCapacity(2.0, 2048 * MIB))
    limits.set_host(Job(id="j1", spec=JobSpec(name="j", command=("x",), **fields), submitted_s=0.0, epoch=1))
    return limits


def test_by_default_the_kernel_holds_a_process_to_the_shares_of_its_devices(enforcer: Enforcer) -> None:
    enforcer.name = "cgroup"
    limits = hosted(enforcer)
    assert limits.command(KEY, 0, (0, 1), ("true",))[:3] == ["capped", "j1-1-0", str(4096 * MIB)]
    assert enforcer.cpus == {}


def test_a_resource_limit_holds_it_to_what_it_asked_for_and_else_to_the_node(enforcer: Enforcer) -> None:
    asked = hosted(enforcer, host_memory_bytes=50 * MIB, cpus=1.5)
    assert asked.command(KEY, 0, (0,), ("true",))[2] == str(50 * MIB + HOST_LEAST_BYTES)
    assert enforcer.cpus == {"j1-1-0": 1.5}
    assert hosted(enforcer).command(KEY, 0, (0,), ("true",))[2] == str(4096 * MIB)


def test_no_run_that_asks_for_nothing_is_held_to_less_than_a_gibibyte_a_device(enforcer: Enforcer) -> None:
    limits = MemoryLimits(
        [msgspec.structs.replace(HOST, index=index) for index in range(16)], enforcer, HostCapacity(2.0, 200 * MIB)
    )
    limits.set_host(Job(id="j1", spec=JobSpec(name="j", command=("x",)), submitted_s=0.0, epoch=1))
    assert limits.hosted[KEY].memory_bytes == 1024 * MIB


def test_a_run_is_held_to_no_less_than_what_it_keeps_on_the_host_and_a_gibibyte(enforcer: Enforcer) -> None:
    assert hosted(enforcer, local_memory_bytes=256 * MIB).hosted[KEY].memory_bytes == 2048 * MIB
    assert hosted(enforcer, local_memory_bytes=2048 * MIB).hosted[KEY].memory_bytes == 3072 * MIB
    assert hosted(enforcer, local_memory_bytes=9 << 30).hosted[KEY].memory_bytes == 4096 * MIB
    asked = hosted(enforcer, local_memory_bytes=256 * MIB, host_memory_bytes=512 * MIB)
    assert asked.hosted[KEY].memory_bytes == 512 * MIB


def test_what_the_kernel_ended_for_its_hosts_memory_is_told_with_the_limit(enforcer: Enforcer) -> None:
    enforcer.name, enforcer.killed = "cgroup", 1
    words = hosted(enforcer).killed_on_host(KEY, 0, 1, "")
    assert words == (
        "ended for using more than its 2 GiB of host memory, its devices' share of the node "
        "(--host-memory asks for more)"
    )
    assert hosted(enforcer, host_memory_bytes=MIB).killed_on_host(KEY, 0, 2, "") == (
        "ended for using more than its 2 MiB of host memory"
    )


@pytest.mark.parametrize(
    ("asked_bytes", "said", "named"),
    [(MIB, "MemoryError", True), (MIB, "ValueError", False), (0, "MemoryError", False)],
)
def test_a_process_that_was_refused_memory_that_it_had_asked_not_to_have_failed_for_that(
    enforcer: Enforcer, asked_bytes: int, said: str, named: bool
) -> None:
    words = hosted(enforcer, host_memory_bytes=asked_bytes).killed_on_host(KEY, 0, 1, said)
    assert words == ("ended for using more than its 1 MiB of host memory: MemoryError" if named else "")


def test_all_processes_of_a_session_count_together(enforcer: Enforcer, process: subprocess.Popen[bytes]) -> None:
    places = {(KEY, 0): (process.pid, 1)}
    assert hosted(enforcer).over_host(places) == {}
    limits = hosted(enforcer, host_memory_bytes=50 * MIB)
    assert limits.over_host(places) == {KEY: "ended for using more than its 50 MiB of host memory"}
    elsewhere = {(KEY, 0): (os.getppid(), 1)}  # whoever that is, it holds less
    assert limits.over_host(elsewhere, {(KEY, 0): [process.pid]}) == limits.over_host(places)
    enforcer.name = "cgroup"
    assert limits.over_host(places) == {}


def test_what_was_made_for_a_run_that_had_its_devices_alone_is_removed_with_it(enforcer: Enforcer) -> None:
    limits = hosted(enforcer)
    limits.forget_host(KEY, (0, 1))
    assert (enforcer.forgotten, limits.hosted) == (["j1-1-0", "j1-1-1"], {})


def test_a_run_that_shares_its_devices_or_a_node_that_says_nothing_is_held_to_no_part_of_the_host(
    enforcer: Enforcer,
) -> None:
    assert hosted(enforcer, sharing="lane").hosted == {}
    unknown = MemoryLimits([HOST], enforcer, HostCapacity(2.0, 0))
    unknown.set_host(Job(id="j1", spec=JobSpec(name="j", command=("x",)), submitted_s=0.0, epoch=1))
    assert unknown.command(KEY, 0, (0,), ("true",)) == ["true"]


@pytest.mark.parametrize("refuses", [False, True])
def test_a_group_is_held_to_its_processes_and_to_the_gpus_of_its_grant(
    enforcer: Enforcer, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    enforcer.refuses = refuses  # as the kernel refuses it in most containers: the run goes on, and the log says so
    numbers = {"/dev/nvidia7": 7}
    monkeypatch.setattr(memory_limits.sandbox, "device_nodes", lambda _: iter(numbers))
    monkeypatch.setattr(memory_limits.device_guard, "minors", lambda nodes: [numbers[node] for node in nodes])
    limits = MemoryLimits([HOST, GPU], enforcer, most_tasks=500)
    limits.caps[KEY] = {0: 100 * MIB}
    assert limits.group(KEY, 0, (0,)) == "/groups/j1-1-0"
    assert enforcer.bounds == [("j1-1-0", 500, None), ("j1-1-0", 0, [7])]
    assert limits.group(KEY, 1, (1,)) == ""  # whose memory is the GPU's: it has no group
    assert len(enforcer.bounds) == 2
