"""
Warm starts against cold ones: ``python tests/bench/bench_warm.py [STARTS] [PYTHON] [ACCOUNT]``.

By one launcher in one run, alternately: from the order to start a program until its first step, and until its process
has ended, of an empty script, one that imports numpy, and one that imports torch and makes a step of an optimiser,
where ``PYTHON`` has it; the last on a GPU, too, where there is one. Then five commands in turn on a node with four
servers, and on one with none: processor time of all that was started, servers included, and the time to the first step.
Then a sweep of short trials on a real cluster, on a node that starts none warm, and on one that does.

With an ``ACCOUNT``, as root: the programs run as that account and confined, by a ``PYTHON`` that it may run; no sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import resource
import select
import statistics
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from clusters import Cluster, facts

import penstock
from penstock_executor.launchers.confinement import Confinement
from penstock_executor.launchers.fork_launcher import ForkLauncher
from penstock_executor.launchers.launcher import WarmRequest
from penstock_executor.launchers.warm_pool import WarmRules
from penstock_log import SweepSpec, validation

STARTS, TRIALS, LEARNING = 12, 50, 30
COMMANDS, IN_TURN = 5, 50
STARTED = "run.started.v1"
FIRST_STEP = "import time; print(time.clock_gettime(time.CLOCK_MONOTONIC), flush=True)"
SCRIPTS = {
    "an empty script": "",
    "numpy, a product": "import numpy; numpy.ones((64, 64)) @ numpy.ones((64, 64))",
    "torch, a step of SGD": (
        "import torch; layer = torch.nn.Linear(64, 64); layer(torch.ones(8, 64)).sum().backward(); "
        "torch.optim.SGD(layer.parameters(), lr=0.1).step()"
    ),
    "torch, a step of SGD on a GPU": (
        "import torch; layer = torch.nn.Linear(64, 64).cuda(); layer(torch.ones(8, 64).cuda()).sum().backward(); "
        "torch.optim.SGD(layer.parameters(), lr=0.1).step(); torch.cuda.synchronize()"
    ),
}
TRIAL = """
import penstock, numpy
with penstock.session() as session:
    for step in session.iterations(range(3)):
        session.report(score=float(numpy.ones(4).sum()))
"""


class Start(NamedTuple):
    """How a program began, and after how many seconds it had made its first step and had ended."""

    how: str
    step_s: float
    end_s: float


def confined_as(account: str, folder: Path, code: Path) -> Confinement:
    """Return what a program of an account gives up, with a temporary folder of its own."""
    entry = pwd.getpwnam(account)
    tmp = Path(tempfile.mkdtemp(dir=folder))
    os.chown(tmp, entry.pw_uid, entry.pw_gid)
    groups = tuple(os.getgrouplist(account, entry.pw_gid))
    who = Confinement(user=account, uid=entry.pw_uid, gid=entry.pw_gid, groups=groups, most_tasks=4096)
    return who._replace(tmp=str(tmp), kept=(str(code),))


def start(launcher: ForkLauncher, folder: Path, python: str, script: str, account: str = "") -> Start:
    """Start a script and wait for its end."""
    rank = Path(tempfile.mkdtemp(dir=folder.parent))
    if account:
        launcher.confine(rank, confined_as(account, folder.parent, folder))
    env = {
        **launcher.base_environment(),
        "CUDA_VISIBLE_DEVICES": "0" if "cuda" in Path(folder, script).read_text() else "",
    }
    began_s = time.perf_counter()
    process = launcher.start(rank, (python, script), env, str(folder), warm=WarmRequest())
    ended = launcher.exit_fd(process)
    select.select([ended], [], [])
    over_s = time.perf_counter()
    os.close(ended)
    code = launcher.reap(process, rank)
    assert code == 0, (rank / "stderr").read_text()
    return Start(launcher.how(rank), float((rank / "stdout").read_text()) - began_s, over_s - began_s)


def compare(name: str, python: str, starts: int, account: str = "") -> None:
    """Print how long cold and warm starts of a script take."""
    cold, warm = ForkLauncher(), ForkLauncher(WarmRules(user_servers=1))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        script = Path(folder, "run", "s.py")
        script.parent.mkdir()
        script.write_text(f"{SCRIPTS[name]}\n{FIRST_STEP}\n")
        for _ in range(LEARNING):
            start(warm, script.parent, python, "s.py", account)
            if warm.has_settled() and start(warm, script.parent, python, "s.py", account).how == "warm":
                break
        found: dict[str, list[Start]] = {"cold": [], "warm": []}
        for _ in range(starts):
            found["cold"].append(start(cold, script.parent, python, "s.py", account))
            found["warm"].append(start(warm, script.parent, python, "s.py", account))
        assert all(one.how == "warm" for one in found["warm"]), found["warm"]
        _, held_bytes = warm.kept()
    cold.close(), warm.close()
    step, end = ([median_ms(found[way], field) for way in found] for field in ("step_s", "end_s"))
    print(
        f"{name}, {starts} starts each: to the first step cold {step[0]:.0f} ms, warm {step[1]:.0f} ms, "
        f"ratio {step[1] / step[0]:.3f}; to the end cold {end[0]:.0f} ms, warm {end[1]:.0f} ms, "
        f"ratio {end[1] / end[0]:.3f}; its server holds {held_bytes / 2**20:.0f} MiB"
    )


def compare_in_turn() -> None:
    """Print what starts of five commands in turn cost with four servers, and with none."""
    spent_s: dict[str, float] = {}
    found: dict[str, list[Start]] = {}
    for way, rules in (("off", WarmRules(servers=0)), ("warm", WarmRules())):
        launcher, before_s = ForkLauncher(rules), processor_s()
        with tempfile.TemporaryDirectory() as folder:
            code = Path(folder, "run")
            code.mkdir()
            for number in range(COMMANDS):
                (code / f"s{number}.py").write_text(f"{SCRIPTS['numpy, a product']}\n{FIRST_STEP}\n")
            scripts = [f"s{number % COMMANDS}.py" for number in range(IN_TURN)]
            found[way] = [start(launcher, code, sys.executable, script) for script in scripts]
            launcher.close()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)  # the servers, whose time counts too
        spent_s[way] = processor_s() - before_s
    warm = sum(one.how == "warm" for one in found["warm"])
    off_ms, warm_ms = (median_ms(found[way], "step_s") for way in ("off", "warm"))
    off_s, warm_s = spent_s["off"], spent_s["warm"]
    print(
        f"{COMMANDS} commands in turn, {IN_TURN} starts, of which {warm} warm: processor time off {off_s:.1f} s, "
        f"with servers {warm_s:.1f} s, ratio {warm_s / off_s:.2f}; to the first step off {off_ms:.0f} ms, "
        f"with servers {warm_ms:.0f} ms, ratio {warm_ms / off_ms:.2f}"
    )


def processor_s() -> float:
    """Return the processor time of all children that have ended and were waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def median_ms(starts: list[Start], field: str) -> float:
    """Return the median of a time, in milliseconds."""
    return 1e3 * statistics.median(getattr(one, field) for one in starts)


def environment_with_penstock(folder: Path) -> str:
    """Return the Python of an environment in which Penstock and what it needs are installed, as people have it."""
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    installed = [Path(sysconfig.get_path("purelib")), Path(penstock.__file__).parents[1]]
    for package in (entry for root in installed for entry in root.iterdir() if entry.suffix != ".pth"):
        with contextlib.suppress(FileExistsError):
            (site / package.name).symlink_to(package)
    return str(folder / "bin" / "python")


async def sweep_s(cluster: Cluster, folder: Path, python: str) -> float:
    """Return how long a sweep of short trials takes, in seconds."""
    document = {
        "name": "short",
        "metric": "score",
        "search": "random",
        "trials": TRIALS,
        "packing": 1,
        "filling": "one",
        "space": {"x": {"kind": "uniform", "low": 0.0, "high": 1.0}},
        "job": {"command": [python, "trial.py"], "cwd": str(folder), "profile": "off", "name": "trial"},
    }
    async with cluster.client() as client:
        answer = await client.tune(validation.convert(document, SweepSpec))
        sweep = await client.wait_sweep(answer.id)
        starts = [fact.fact.get("start") for one in sweep.trials for fact in await facts(client, one.job_id, STARTED)]
    assert sweep.state == "completed", sweep.reason
    print(f"  of {len(starts)} runs {starts.count('warm')} began warm", flush=True)
    return sweep.makespan_s


def compare_sweeps() -> None:
    """Print how long a sweep takes whose trials start cold, and one whose trials start warm."""
    took_s: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = environment_with_penstock(folder / "venv")
        (folder / "trial.py").write_text(TRIAL)
        for way in ("off", "learn"):
            os.environ["PENSTOCK_EXECUTOR_WARM_STARTS"] = way
            cluster = Cluster(folder / way, "--emulate", "fast:4@1.0:4GiB")
            cluster.up()
            try:
                took_s[way] = [asyncio.run(sweep_s(cluster, folder, python)) for _ in range(2)][-1]
            finally:
                cluster.down()
    ratio = took_s["learn"] / took_s["off"]
    print(f"a sweep of {TRIALS} trials: cold {took_s['off']:.1f} s, warm {took_s['learn']:.1f} s, ratio {ratio:.2f}")


def main() -> None:
    """Print all comparisons."""
    starts = int(sys.argv[1]) if len(sys.argv) > 1 else STARTS
    python = sys.argv[2] if len(sys.argv) > 2 else ""
    if account := sys.argv[3] if len(sys.argv) > 3 else "":
        for name in SCRIPTS:
            compare(name, python, starts, account)
        return
    for name in SCRIPTS:
        if "GPU" in name and not Path("/dev/nvidia0").exists():
            continue
        if python or not name.startswith("torch"):
            compare(name, python if name.startswith("torch") else sys.executable, starts)
    compare_in_turn()
    compare_sweeps()


if __name__ == "__main__":
    main()
