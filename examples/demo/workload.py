"""
The demo's workload: its jobs, when each arrives, how long it takes, and how it must end.

What the demo claims follows from the order of arrival, on a host of any speed and under any load:

* ``long`` comes first and alone, so it runs at once. All others arrive while it does, and keep every device busy for
  several times the 5 s after which it falls to the second queue. So it is preempted for one of them.
* ``to-be-cancelled`` and ``elastic`` come when all others are over. The first holds one of the two fast devices until
  the second has trained on the other one for a while, and is then cancelled. Nobody else wants its device, and
  ``elastic`` has several times as much left to do as a resize takes. So it grows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, Literal

import msgspec

from penstock_log import Batch, Choice, JobSpec, SweepSpec

EXAMPLES: Final = str(Path(__file__).parents[1])
DATA_SET: Final = 1438
"""Images that the examples train on."""
FAST_STEP_S: Final = {"mlp": 0.010, "softmax": 0.0045, "narrow mlp": 0.0015}
"""Declared seconds of a step on a fast device, alone; the devices are emulated for that of ``mlp``."""
SPEEDS: Final = {"fast": 1.0, "slow": 0.4, "cpu": 2.0}
"""Declared speed of each kind; the host itself, which is ``cpu``, is at least twice as fast as a fast device."""
DEVICES: Final = {"fast": 2, "slow": 2, "cpu": 1}
LONG: Final = "long"
HOLDER: Final = "to-be-cancelled"
ELASTIC: Final = "elastic"
EPOCHS: Final = 50
"""Of the elastic job: some 10 s on one device."""
End = Literal["CD", "CA", "refused"]


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """
    One job of the demo.

    Attributes
    ----------
    at_s : float
        Seconds after the start of ``long`` at which it is submitted.
    work_s : float
        Declared seconds that its steps take on fast devices.
    steps : int
        Gradient steps that it must have done in the end: none lost, none twice. 0: as many as its batch sizes make.
    samples : int
        Images that it must have seen in the end, likewise; 0: that is not looked at.
    grows : bool
        Whether it must have had more devices in some run than in the one before.
    end : {"CD", "CA", "refused"}
        How it must end.
    attempts, preemptions : int
        The least that there must have been.
    """

    spec: JobSpec
    at_s: float = 0.0
    work_s: float = 0.0
    steps: int = 0
    samples: int = 0
    grows: bool = False
    end: End = "CD"
    attempts: int = 1
    preemptions: int = 0


def job(name: str, model: str, steps: int, *, gpus: int = 1, kinds: tuple[str, ...] = (), **params: float) -> JobSpec:
    """Return the specification of a training job on the handwritten digits; ``model`` is ``mlp`` or ``softmax``."""
    return JobSpec(
        name=name,
        command=(sys.executable, f"digits_{model}.py"),
        cwd=EXAMPLES,
        model=model if gpus == 1 else f"{model}-x{gpus}",
        gpus=gpus,
        kinds=kinds,
        params={"steps": steps, **params},
        checkpoint_s=2.0,
        grace_s=30.0,
    )


def first() -> Arrival:
    """Return the job that comes before all others."""
    return _training(LONG, "mlp", 900, kinds=("fast",), preemptions=1)


def crowd() -> list[Arrival]:
    """Return the jobs that arrive while ``long`` runs, in the order of their arrival."""
    crashing = _training("crash-once", "softmax", 600, at_s=2.0, attempts=2, crash_at=300)
    return [
        _training("softmax-a", "softmax", 1000, at_s=0.2),
        _training("mlp-a", "mlp", 300, at_s=0.4),
        _training("on-cpu", "softmax", 1000, at_s=0.6, kinds=("cpu",)),
        _training("gang-mlp", "mlp", 200, at_s=1.0, gpus=2),
        msgspec.structs.replace(crashing, spec=msgspec.structs.replace(crashing.spec, retries=1, backoff_s=0.5)),
        _training("mlp-b", "mlp", 200, at_s=2.5, lr=0.05),
        Arrival(at_s=3.0, spec=job("never-fits", "mlp", 100, gpus=64), end="refused"),
        _training("softmax-b", "softmax", 600, at_s=3.0),
        _training("gang-softmax", "softmax", 400, at_s=3.5, gpus=2),
        _training("mlp-c", "mlp", 200, at_s=4.0),
        _training("softmax-c", "softmax", 800, at_s=4.5),
        _training("mlp-d", "mlp", 150, at_s=5.0),
        _training("softmax-d", "softmax", 500, at_s=6.0),
        _training("mlp-e", "mlp", 200, at_s=7.0),
    ]


def holder() -> Arrival:
    """Return the job that holds a fast device until the demo cancels it."""
    return Arrival(spec=job(HOLDER, "mlp", 1_000_000, kinds=("fast",)), end="CA")


def elastic() -> Arrival:
    """Return a job that takes one or two devices, and a batch that goes with them; as many samples whatever it gets."""
    spec = msgspec.structs.replace(
        job(ELASTIC, "mlp", 0, kinds=("fast",)),
        model="mlp-elastic",
        min_gpus=1,
        max_gpus=2,
        batch=Batch(min=64, max=128, step=64, per_gpu_max=64, base=64, lr="sqrt"),
        params={"epochs": EPOCHS, "lr": 0.05},
        checkpoint_s=1.0,
    )
    return Arrival(spec=spec, samples=EPOCHS * DATA_SET, grows=True)


def arrivals() -> list[Arrival]:
    """Return all jobs in the order of their arrival, without the sweep's."""
    return [first(), *crowd(), holder(), elastic()]


SWEEP_AT_S: Final = 5.5
SWEEP_STEPS: Final = 100
LEARNING_RATES: Final = (0.02, 0.05, 0.1, 0.2)
WIDTHS: Final = {128: "narrow mlp", 512: "mlp"}
TRIALS: Final = len(LEARNING_RATES) * len(WIDTHS)


def sweep() -> SweepSpec:
    """Return the sweep: four learning rates times two widths."""
    return SweepSpec(
        name="digits",
        job=msgspec.structs.replace(job("digits", "mlp", SWEEP_STEPS), model="mlp-trial"),
        space={"lr": Choice(values=LEARNING_RATES), "width": Choice(values=tuple(WIDTHS))},
        search="grid",
        metric="accuracy",
    )


def trials() -> list[Arrival]:
    """Return the sweep's trials as jobs that arrive with it."""
    spec = msgspec.structs.replace(sweep().job, params={})
    return [
        Arrival(
            at_s=SWEEP_AT_S,
            spec=msgspec.structs.replace(spec, name=f"digits-t{number:03d}"),
            work_s=SWEEP_STEPS * FAST_STEP_S[WIDTHS[width]],
            steps=SWEEP_STEPS,
        )
        for number, width in enumerate(width for _ in LEARNING_RATES for width in WIDTHS)
    ]


def _training(
    name: str,
    model: str,
    steps: int,
    *,
    at_s: float = 0.0,
    gpus: int = 1,
    kinds: tuple[str, ...] = (),
    attempts: int = 1,
    preemptions: int = 0,
    **params: float,
) -> Arrival:
    """Return a job that trains to its end; the processes of a gang share each step."""
    return Arrival(
        at_s=at_s,
        spec=job(name, model, steps, gpus=gpus, kinds=kinds, **params),
        work_s=steps * FAST_STEP_S[model] / gpus,
        steps=steps,
        attempts=attempts,
        preemptions=preemptions,
    )
