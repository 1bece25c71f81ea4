"""
Sweeps of the digits example, by water-filling and by one trial a device: ``bench_sweep.py [WORDS]``.

A 27-trial Hyperband and a 16-trial synchronous BOHB on a real ``penstock up`` with real processes: on four emulated
devices (``emulated``), on four bare CPU devices (``cpu``), and on four emulated devices with networks and batches large
enough to be worth spreading (``large``). Both ways of filling run on the same cluster, one after the other; what counts
are their ratios. ``hyperband``, ``bohb`` and the names of the devices choose; ``rounds=3`` repeats each pair.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from clusters import Cluster

import penstock
from penstock_log import SweepSpec, validation, views

EXAMPLES = Path(__file__).parents[2] / "examples"
TARGET = 0.96
SEARCHES = ("hyperband", "bohb")


class Setup(NamedTuple):
    """Where a sweep runs, and what of the example is changed; a slow device makes training outweigh starting."""

    devices: str
    kind: str
    batch: int = 128
    widths: tuple[int, ...] = ()
    steps_times: int = 1


SETUPS = {
    "emulated": Setup("fast:4@0.01:16GiB", "fast"),
    "large": Setup("fast:4@0.1:16GiB", "fast", batch=1024, widths=(256, 512)),
    "cpu": Setup(",".join(["cpu:1GiB"] * 4), "cpu", widths=(256, 512), steps_times=10),
}


class Way(NamedTuple):
    """How devices are given to trials."""

    name: str
    fields: dict[str, Any]


WAYS = (
    Way("one trial a device", {"filling": "one"}),
    Way("water-filling", {"filling": "water", "max_gpus": 4, "leftover": True}),
)


class Seen(NamedTuple):
    """What came of a sweep."""

    makespan_s: float
    target_s: float
    goodput: float
    utilisation: float
    best: float
    widest: int
    packed: int
    runs: int
    moving: float


def spec(search: str, name: str, way: Way) -> SweepSpec:
    """Return the example as it is run here."""
    document, setup = tomllib.loads((EXAMPLES / "sweeps" / f"{search}.toml").read_text()), SETUPS[name]
    document["job"] |= {
        "command": [sys.executable, str(EXAMPLES / "digits_mlp.py")],
        "kinds": [setup.kind],
        "name": f"digits-{search}-{name}",
        "model": f"digits-{search}-{name}",
        "batch_size": setup.batch,
    }
    if setup.widths:
        document["space"]["width"]["values"] = list(setup.widths)
    for bound in ("least", "most"):
        document["budget"][bound] *= setup.steps_times
    return validation.convert({**document, "target": TARGET, **way.fields}, SweepSpec)


async def run(client: penstock.Client, asked: SweepSpec) -> Seen:
    """Run a sweep to its end."""
    sweep = await client.wait_sweep((await client.tune(asked)).id)
    if sweep.state != "completed" or sweep.goodput is None:
        raise SystemExit(f"the sweep {sweep.id} {sweep.state}: {sweep.reason}")
    return seen(sweep, sweep.goodput)


def seen(sweep: views.SweepView, goodput: views.GoodputView) -> Seen:
    return Seen(
        sweep.makespan_s,
        sweep.target_s if sweep.target_s is not None else float("nan"),
        goodput.share,
        sweep.utilisation or 0.0,
        sweep.best_value or 0.0,
        max(trial.gpus for trial in sweep.trials),
        sum(trial.packed > 1 for trial in sweep.trials),
        len(sweep.trials),
        goodput.rescale_gpu_s / goodput.allocated_gpu_s,
    )


async def compare(cluster: Cluster, search: str, setup: str, rounds: int) -> None:
    """Print a line for each way, and the ratios."""
    found: dict[str, list[Seen]] = {way.name: [] for way in WAYS}
    async with cluster.client() as client:
        for number in range(rounds):
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                found[way.name].append(await run(client, spec(search, setup, way)))
    print(f"{search}, {setup}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for name, each in found.items():
        print(line(name, each), flush=True)
    one, water = (found[way.name] for way in WAYS)
    print(
        f"  water-filling / one trial a device: makespan x{ratio(water, one, 'makespan_s'):.2f}, "
        f"to accuracy {TARGET:g} x{ratio(water, one, 'target_s'):.2f}, goodput x{ratio(water, one, 'goodput'):.2f}, "
        f"utilisation x{ratio(water, one, 'utilisation'):.2f}",
        flush=True,
    )


def line(name: str, each: list[Seen]) -> str:
    makespans = ", ".join(f"{one.makespan_s:.1f}" for one in each)
    return (
        f"  {name:20} makespan {makespans} s, to the target {mean(each, 'target_s'):.1f} s, "
        f"goodput {mean(each, 'goodput'):.0%}, used {mean(each, 'utilisation'):.0%}, "
        f"moving {mean(each, 'moving'):.0%}, best {each[0].best:.4f}, "
        f"widest {max(one.widest for one in each)}, packed {mean(each, 'packed'):.0f} of {each[0].runs} runs"
    )


def mean(each: Iterable[Seen], name: str) -> float:
    return fmean(getattr(one, name) for one in each)


def ratio(these: list[Seen], those: list[Seen], name: str) -> float:
    return mean(these, name) / mean(those, name) if mean(those, name) else float("nan")


def main() -> None:
    """Run what was chosen."""
    words = sys.argv[1:]
    rounds = next((int(word.partition("=")[2]) for word in words if word.startswith("rounds=")), 1)
    for name in [each for each in SETUPS if each in words] or SETUPS:
        with tempfile.TemporaryDirectory() as folder:
            cluster = Cluster(Path(folder) / "data", "--devices", SETUPS[name].devices)
            cluster.up()
            try:
                for search in [each for each in SEARCHES if each in words] or SEARCHES:
                    asyncio.run(compare(cluster, search, name, rounds))
            finally:
                cluster.kill_all()


if __name__ == "__main__":
    main()
