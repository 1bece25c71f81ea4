"""Memory caps: really enforced by limits on this host, and by control groups where they may be made."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock_cluster import DeviceError
from penstock_cluster.accounting import family
from penstock_cluster.device_backend import MemoryCaps
from penstock_cluster.host_limits import (
    AGENT,
    Cgroups,
    CgroupsUnavailable,
    Rlimit,
    environment,
    least,
    mount_of,
    own,
    path_of,
    strongest_caps,
)
from penstock_log import Device
from penstock_log.agent_protocol import AgentEnv

MIB = 2**20
TAKE = "import sys; taken = bytearray(int(sys.argv[1]) << 20)"
BY_TURNS = """\
for line in iter(input, "end"):
    try:
        taken = bytearray(int(line) << 20)
        taken = None
        print("taken", flush=True)
    except MemoryError:
        print("refused", flush=True)
"""
MAP_300_MIB = "import mmap; kept = mmap.mmap(-1, 300 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"


@pytest.fixture(params=["rlimit", "cgroup"])
def caps(request: pytest.FixtureRequest) -> MemoryCaps:
    if request.param == "rlimit":
        return Rlimit()
    found = strongest_caps()
    if found.name != "cgroup":
        pytest.skip(f"control groups were not tried: {found.reason}")
    return found


def entering(caps: MemoryCaps, key: str, command: list[str]) -> list[str]:
    """Return a command behind a shell that enters its group first, as a shim does."""
    group = caps.group(key)
    return ["/bin/sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', group, *command] if group else command


def run_capped(caps: MemoryCaps, mib: int, cap_mib: int) -> int:
    command = caps.command("test-job-1-0", [sys.executable, "-S", "-c", TAKE, str(mib)], cap_mib * MIB)
    try:
        command = entering(caps, "test-job-1-0", command)
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode
    finally:
        caps.forget("test-job-1-0")


def test_a_process_that_keeps_to_its_cap_runs(caps: MemoryCaps) -> None:
    assert run_capped(caps, mib=100, cap_mib=160) == 0


def test_a_process_that_takes_more_than_its_cap_fails_and_nobody_else(caps: MemoryCaps) -> None:
    assert run_capped(caps, mib=200, cap_mib=160) in {1, 128 + signal.SIGKILL, -signal.SIGKILL}


def test_the_arguments_of_a_capped_command_arrive_as_they_are(caps: MemoryCaps) -> None:
    words = ["", "two words", "$HOME", "'quoted'", "-d", "new\nline"]
    print_them = "import sys; print(sys.argv[1:])"
    command = caps.command("test-arguments", [sys.executable, "-S", "-c", print_them, *words], 200 * MIB)
    command = entering(caps, "test-arguments", command)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == str(words)
    caps.forget("test-arguments")


def test_a_cap_of_nothing_is_refused(caps: MemoryCaps) -> None:
    with pytest.raises(DeviceError, match="expected at least 1 byte"):
        caps.command("test-nothing", ["true"], 0)


Ask = Callable[[int], str]


@contextmanager
def speaking(caps: MemoryCaps, cap_mib: int, most_mib: int, first: str = "") -> Iterator[tuple[int, Ask]]:
    """Yield a process that takes memory when it is asked to."""
    argv = [sys.executable, "-S", "-u", "-c", first + BY_TURNS]
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                entering(caps, "test-speaking", caps.command("test-speaking", argv, cap_mib * MIB, most_mib * MIB)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        assert process.stdin
        assert process.stdout
        stdin, stdout = process.stdin, process.stdout
        stack.callback(process.kill)

        def ask(mib: int) -> str:
            stdin.write(f"{mib}\n")
            stdin.flush()
            return stdout.readline().strip()

        yield process.pid, ask


def test_a_cap_rises_and_falls_while_its_process_runs() -> None:
    caps = Rlimit()
    with speaking(caps, cap_mib=100, most_mib=400) as (pid, ask):
        assert ask(200) == "refused"
        caps.change("test-speaking", pid, 300 * MIB)
        assert ask(200) == "taken"
        caps.change("test-speaking", pid, 100 * MIB)
        assert ask(200) == "refused"
        assert ask(10) == "taken"


def test_what_a_process_has_mapped_and_not_touched_is_not_held_against_it() -> None:
    caps = Rlimit()
    with speaking(caps, cap_mib=600, most_mib=600, first=MAP_300_MIB) as (pid, ask):
        assert ask(1) == "taken"
        caps.change("test-speaking", pid, 200 * MIB)
        assert ask(100) == "taken"
        assert ask(250) == "refused"


def test_a_cap_below_what_is_held_takes_nothing_away_and_gives_nothing_more() -> None:
    caps = Rlimit()
    with speaking(caps, cap_mib=300, most_mib=300, first="kept = bytearray(100 << 20)\n") as (pid, ask):
        assert ask(1) == "taken"
        caps.change("test-speaking", pid, 50 * MIB)
        assert ask(50) == "refused"
        assert ask(0) == "taken"


def test_a_cap_does_not_rise_above_what_its_process_was_started_with() -> None:
    caps = Rlimit()
    with speaking(caps, cap_mib=100, most_mib=200) as (pid, ask):
        assert ask(50) == "taken"  # it runs, so its limits are set
        with pytest.raises(DeviceError, match="may get 209715200 bytes at most"):
            caps.change("test-speaking", pid, 300 * MIB)


def test_the_usage_of_a_capped_process_is_at_least_what_it_was_made_to_take() -> None:
    caps = Rlimit()
    with speaking(caps, cap_mib=300, most_mib=300) as (pid, ask):
        ask(1)
        assert pid in family(pid)
        assert 1 * MIB < caps.usage("test-speaking", pid).current_bytes < 300 * MIB
    assert caps.usage("test-speaking", pid).current_bytes == 0


def test_a_hosts_way_of_capping_says_why_it_is_no_better() -> None:
    found = strongest_caps()
    assert found.reason
    assert found.name in {"rlimit", "cgroup"}


@pytest.fixture
def delegated(tmp_path: Path) -> Path:
    """A directory with the files that a delegated group has; what is written there can be read back."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "cgroup.subtree_control").write_text("")
    return tmp_path


def test_a_group_gets_its_cap_before_anything_enters_it(delegated: Path) -> None:
    caps = Cgroups.open(delegated)
    assert (delegated / "cgroup.subtree_control").read_text() == "+memory +cpu +pids"
    command = caps.command("j1-1-0", ["/bin/sh", "-c", "echo $$"], 64 * MIB)
    group = delegated / "penstock-job-j1-1-0"
    assert (group / "memory.max").read_text() == str(64 * MIB)
    assert caps.group("j1-1-0") == str(group)
    command = entering(caps, "j1-1-0", command)
    pid = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert (group / "cgroup.procs").read_text() == pid


def test_a_group_is_held_to_its_processes_where_there_is_the_controller(delegated: Path) -> None:
    caps = Cgroups.open(delegated)
    caps.command("j1-1-0", ["true"], 64 * MIB)
    group = delegated / "penstock-job-j1-1-0"
    caps.bound("j1-1-0", tasks=100)
    assert not (group / "pids.max").exists()
    (group / "pids.max").write_text("max")
    caps.bound("j1-1-0", tasks=100)
    assert (group / "pids.max").read_text() == "100"
    caps.bound("j1-1-0")
    assert (group / "pids.max").read_text() == "100"


def test_a_group_tells_what_its_processes_hold_and_how_many_were_killed(delegated: Path) -> None:
    caps = Cgroups.open(delegated)
    caps.command("j1-1-0", ["true"], 64 * MIB)
    group = delegated / "penstock-job-j1-1-0"
    (group / "memory.current").write_text("1000\n")
    (group / "memory.peak").write_text("3000\n")
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n")
    usage = caps.usage("j1-1-0", 0)
    assert (usage.current_bytes, usage.peak_bytes, usage.killed) == (1000, 3000, 1)
    assert caps.usage("another", 0).current_bytes == 0


def test_a_groups_cap_never_falls_below_what_cannot_be_taken_back(delegated: Path) -> None:
    caps = Cgroups.open(delegated)
    caps.command("j1-1-0", ["true"], 64 * MIB)
    group = delegated / "penstock-job-j1-1-0"
    (group / "memory.stat").write_text(f"anon {50 * MIB}\nfile {900 * MIB}\nshmem 0\nkernel {MIB}\n")
    caps.change("j1-1-0", 0, 10 * MIB)
    assert (group / "memory.max").read_text() == str(51 * MIB)
    caps.change("j1-1-0", 0, 80 * MIB)
    assert (group / "memory.max").read_text() == str(80 * MIB)


def test_kernels_that_do_not_sum_their_own_memory_have_it_summed() -> None:
    assert least("anon 100\nkernel_stack 10\npagetables 5\nslab_unreclaimable 1\n") == 116


def test_all_that_is_in_a_group_is_ended_and_nobody_else(delegated: Path) -> None:
    caps = Cgroups.open(delegated)
    caps.command("j1-1-0", ["true"], 64 * MIB)
    sleeping = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    inside, other = subprocess.Popen(sleeping, start_new_session=True), subprocess.Popen(sleeping)
    (delegated / "penstock-job-j1-1-0/cgroup.procs").write_text(f"0\n{inside.pid}\n")
    caps.end("j1-1-0")
    assert inside.wait() == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    other.wait()
    caps.end("unknown")


def test_swap_does_not_stretch_a_cap(delegated: Path) -> None:
    caps = Cgroups.open(delegated)
    group = delegated / "penstock-job-j1-1-0"
    group.mkdir()
    (group / "memory.swap.max").write_text("max")
    caps.command("j1-1-0", ["true"], 64 * MIB)
    assert (group / "memory.swap.max").read_text() == "0"


def test_an_executor_alone_in_its_group_steps_aside_into_one_of_its_own(delegated: Path) -> None:
    (delegated / "cgroup.procs").write_text(f"{os.getpid()}\n")
    Cgroups.open(delegated)
    assert (delegated / AGENT / "cgroup.procs").read_text() == str(os.getpid())


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("cgroup.controllers", "hugetlb", r"no memory controller \(it has hugetlb\)"),
        ("cgroup.controllers", "", r"it has none"),
        ("cgroup.procs", None, "not ours to change"),
        ("cgroup.procs", "1\n2\n", r"holds other processes than the executor \(2\)"),
    ],
)
def test_a_group_that_is_not_ours_is_left_alone(delegated: Path, file: str, content: str | None, message: str) -> None:
    if content is None:
        (delegated / file).unlink()
    else:
        (delegated / file).write_text(content)
    with pytest.raises(CgroupsUnavailable, match=message):
        Cgroups.open(delegated)
    assert (delegated / "cgroup.subtree_control").read_text() == ""
    assert strongest_caps(delegated).name == "rlimit"


def test_a_key_cannot_leave_its_subtree(delegated: Path) -> None:
    with pytest.raises(DeviceError, match="names no group"):
        Cgroups.open(delegated).command("../x", ["true"], MIB)


def test_an_own_group_is_found_where_the_version_2_hierarchy_is_mounted(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(f"4:memory:/old\n0::/penstock.service/{AGENT}\n")
    (tmp_path / "mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    found = own(str(tmp_path / "cgroup"), str(tmp_path / "mountinfo"))
    assert found == Path("/sys/fs/cgroup/penstock.service")  # not where it stepped aside to: that is below
    with pytest.raises(CgroupsUnavailable, match=r"no cgroup v2 hierarchy"):
        own(str(tmp_path / "nothing"), str(tmp_path / "mountinfo"))


def test_hosts_without_version_2_have_no_mount_and_no_path() -> None:
    assert mount_of("25 1 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory") == ""
    assert path_of("4:memory:/x\n") == ""


def gpu(*, mps: bool = False) -> Device:
    return Device(index=0, kind="h100", memory_bytes=1000 * MIB, backend="cuda", mps=mps)


def test_an_allocator_is_told_its_part_without_what_it_does_not_see() -> None:
    env = environment([gpu()], 500 * MIB, framework_bytes=100 * MIB)
    assert env == {AgentEnv.MEMORY_BYTES: str(500 * MIB), AgentEnv.MEMORY_FRACTION: "0.4"}
    nothing = environment([gpu()], 10 * MIB, framework_bytes=100 * MIB)[AgentEnv.MEMORY_FRACTION]
    assert 0 < float(nothing) < 1e-8  # 0 would be no limit


def test_the_driver_is_told_a_cap_only_where_the_operator_runs_mps_on_all_devices() -> None:
    name = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    assert environment([gpu(mps=True)] * 2, 500 * MIB)[name] == "0=500M,1=500M"
    assert name not in environment([gpu(mps=True), gpu()], 500 * MIB)
