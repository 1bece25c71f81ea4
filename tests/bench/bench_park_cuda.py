"""
A preempted training on a GPU, parked and not: ``python tests/bench/bench_park_cuda.py [PREEMPTIONS] [GIB]``.

On a real cluster of the host's CUDA devices, a PyTorch training that holds so much of its device (parameters,
gradients, two moments of Adam, in four equal parts) is preempted by short jobs, one after the other, on a node that
parks no run and on one that does. Printed are the seconds from each placement after a short job's end to the next step,
what the device has in use while it is away, how long moving took, and whether the losses are, step by step,
the same as those of a run that nobody preempts. It wants a Python with PyTorch for CUDA, and all dependencies.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from clusters import Cluster, facts

from penstock_cluster.cuda_backend import CudaBackend

PREEMPTIONS, GIB = 2, 4.0
WIDTH = 4096
SCRIPT = """
import json, logging, os, sys, time
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
began_s = time.time()
import torch
import penstock

layers, notes, last = int(sys.argv[1]), open(sys.argv[2], "a", buffering=1), int(sys.argv[3])
torch.manual_seed(0)


def note(**what):
    print(json.dumps({"at_s": time.time(), **what}), file=notes)


def timed(name, call):
    before_s = time.time()
    call()
    torch.cuda.synchronize()
    note(what=name, took_s=time.time() - before_s)


with penstock.session() as session:
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(layers))).cuda()
    descent = torch.optim.Adam(model.parameters(), lr=1e-5)

    def save(folder):
        timed("saved", lambda: torch.save({"m": model.state_dict(), "d": descent.state_dict()}, folder / "state.pt"))

    def load(folder):
        def both():
            state = torch.load(folder / "state.pt", map_location="cuda", weights_only=True, mmap=True)
            model.load_state_dict(state["m"]), descent.load_state_dict(state["d"])
        timed("loaded", both)

    session.on_checkpoint(save, load)
    session.park_torch()
    parking = session._boundary.parking
    leave, come_back = parking.away, parking.back
    parking.away, parking.back = (lambda: timed("away", leave)), (lambda: timed("back", come_back))
    for step in session.iterations(range(last)):
        random = torch.Generator("cuda").manual_seed(step)
        x = torch.randn(256, 4096, device="cuda", generator=random)
        descent.zero_grad(set_to_none=False)
        loss = (model(x) - x).square().mean()
        loss.backward()
        descent.step()
        note(step=session.step + 1, loss=loss.item(), pid=os.getpid())
"""
LOOK = "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits"


class Resumes(NamedTuple):
    """
    What came of one way.

    Seconds from each placement to the next step, what each short job saw on the device in MiB, how runs began, seconds
    of each move by its name, and the last loss of each step.
    """

    steps_s: list[float]
    beside_mib: list[int]
    starts: list[str]
    moves_s: dict[str, list[float]]
    losses: dict[int, float]


def read(notes: Path) -> list[dict[str, Any]]:
    """Return what the script has noted."""
    whole = notes.read_text().rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines()]


async def until_it_steps(notes: Path, more: int) -> None:
    """Wait until a job has done some steps more: it has run long enough to be preempted."""
    before = sum("step" in line for line in read(notes))
    while sum("step" in line for line in read(notes)) < before + more:  # noqa: ASYNC110 - the file of another process
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.5)


async def preempted(cluster: Cluster, folder: Path, preemptions: int, layers: int) -> Resumes:
    """Have a job preempted again and again."""
    notes = folder / "notes"
    notes.touch()
    command = (sys.executable, str(folder / "train.py"), str(layers), str(notes), "1000000")
    placed_s, beside_mib = [], []
    async with cluster.client() as client:
        long = (await client.submit(name="long", command=command, profile="off", checkpoint_s=0.0)).id
        for count in range(preemptions):
            await until_it_steps(notes, 5)
            seen = folder / f"seen{count}"
            look = ("sh", "-c", f"{LOOK} > {seen}")
            short = await client.submit(name=f"short{count}", command=look, profile="off")
            done = await client.wait(short.id)
            assert done.state == "CD", done
            beside_mib.append(sum(map(int, seen.read_text().split())))
            async for event in client.follow_events(long, after=0):
                if event.type == "run.started.v1" and event.fact["epoch"] == count + 2:
                    break
            detail = await client.job(long)
            placed_s.append(next(run.granted_s for run in detail.runs if run.epoch == count + 2))
        await until_it_steps(notes, 5)
        started = await facts(client, long, "run.started.v1")
        await client.cancel(long)
        await client.wait(long)
    lines = read(notes)
    at_s = [line["at_s"] for line in lines if "step" in line]
    steps_s = [next(step_s for step_s in at_s if step_s > when) - when for when in placed_s]
    moves_s: dict[str, list[float]] = {}
    for line in lines:
        if "what" in line:
            moves_s.setdefault(line["what"], []).append(line["took_s"])
    losses = {line["step"]: line["loss"] for line in lines if "step" in line}
    return Resumes(steps_s, beside_mib, [fact.fact.get("start", "") for fact in started[1:]], moves_s, losses)


def alone(folder: Path, layers: int, steps: int) -> dict[int, float]:
    """Return the losses of a run by hand, which nobody preempts."""
    import subprocess  # noqa: PLC0415

    notes = folder / "alone"
    subprocess.run([sys.executable, str(folder / "train.py"), str(layers), str(notes), str(steps)], check=True)
    return {line["step"]: line["loss"] for line in read(notes) if "step" in line}


def main() -> None:
    """Print both ways."""
    if not CudaBackend().devices() or find_spec("torch") is None:
        print("NOT MEASURED: it wants a CUDA device, and PyTorch for it")
        return
    preemptions = int(sys.argv[1]) if len(sys.argv) > 1 else PREEMPTIONS
    gib = float(sys.argv[2]) if len(sys.argv) > 2 else GIB
    layers = max(1, round(gib * 2**30 / 4 / (WIDTH * WIDTH * 4)))
    found: dict[str, Resumes] = {}
    os.environ["PENSTOCK_EXECUTOR_DEVICES"] = "cuda"
    os.environ["PENSTOCK_MATCHER_OVERHEAD_SHARE"] = "1"  # else a run is left alone for five times of what it costs
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name)
        (whole / "train.py").write_text(SCRIPT)
        for way, most_bytes in (("ends", "0"), ("parked", "-1")):
            os.environ["PENSTOCK_EXECUTOR_PARK_BYTES"] = most_bytes
            folder = whole / way
            folder.mkdir()
            (folder / "train.py").write_text(SCRIPT)
            cluster = Cluster(folder / "data")
            cluster.up()
            try:
                cluster.run("policy", "set", "thresholds_gpu_s=1,1000")
                found[way] = asyncio.run(preempted(cluster, folder, preemptions, layers))
            finally:
                cluster.down()
            one = found[way]
            moves = ", ".join(f"{what} {statistics.median(took):.2f} s" for what, took in one.moves_s.items())
            middle_s = statistics.median(one.steps_s)
            print(
                f"{way}: from placement to the next step, median of {preemptions}: {middle_s:.2f} s "
                f"({', '.join(f'{each:.2f}' for each in one.steps_s)}); starts {one.starts}; "
                f"the device has {one.beside_mib} MiB in use while a short job runs; {moves}",
                flush=True,
            )
        steps = min(max(one.losses) for one in found.values())
        expected = alone(whole, layers, steps)
        for way, one in found.items():
            other = [step for step in range(1, steps + 1) if one.losses[step] != expected[step]]
            same = f"{steps - len(other)} of {steps} losses are those of a run that nobody preempts"
            print(f"{way}: {same}{f'; others from step {other[0]} on' if other else ''}")
    ratio = statistics.median(found["parked"].steps_s) / statistics.median(found["ends"].steps_s)
    print(f"{gib:g} GiB on the device: ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
