"""What the demo runs: when each job arrives, and how each is to end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, Literal

import msgspec

from penstock_events import Batch, Choice, JobSpec, SweepSpec

EXAMPLES: Final = str(Path(__file__).parents[1])
DATA_SET: Final = 1438
"""Images that the examples train on."""
LONG_STEPS: Final = 1200
EPOCHS: Final = 220
"""Of the elastic job: some that the others leave for the end, when it has two devices."""
End = Literal["CD", "CA", "refused"]


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """
    One job of the demo.

    Attributes
    ----------
    at_s : float
        Seconds after the demo's start at which it is submitted.
    steps : int
        Gradient steps that it must have done in the end: none lost, none twice. 0: as many as its batch sizes make.
    samples : int
        Images that it must have seen in the end, likewise; 0: that is not looked at.
    grows : bool
        Whether it must have had more devices in some run than in the one before, if it was the last to end: a busy host
        may do it before the others leave anything.
    end : {"CD", "CA", "refused"}
        How it must end.
    attempts, preemptions : int
        The least that there must have been.
    """

    at_s: float
    spec: JobSpec
    steps: int
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
        grace_s=10.0,
    )


def elastic(name: str, epochs: int) -> JobSpec:
    """Return a job that takes one or two devices, and a batch that goes with them; as many samples whatever it gets."""
    return msgspec.structs.replace(
        job(name, "mlp", 0, kinds=("fast",)),
        model="mlp-elastic",
        min_gpus=1,
        max_gpus=2,
        batch=Batch(min=64, max=128, step=64, per_gpu_max=64, base=64, lr="sqrt"),
        params={"epochs": epochs, "lr": 0.05},
    )


def arrivals() -> list[Arrival]:
    """Return the jobs in the order of their arrival."""
    crashing = msgspec.structs.replace(job("crash-once", "softmax", 1200, crash_at=600), retries=1, backoff_s=0.5)
    impossible = job("never-fits", "mlp", 100, gpus=64)
    return [
        Arrival(at_s=0.0, spec=job("long", "mlp", LONG_STEPS), steps=LONG_STEPS, preemptions=1),
        Arrival(at_s=0.0, spec=elastic("elastic", EPOCHS), steps=0, samples=EPOCHS * DATA_SET, grows=True),
        Arrival(at_s=0.0, spec=job("softmax-a", "softmax", 2000), steps=2000),
        Arrival(at_s=0.2, spec=job("mlp-a", "mlp", 500), steps=500),
        Arrival(at_s=0.4, spec=job("on-cpu", "softmax", 1500, kinds=("cpu",)), steps=1500),
        Arrival(at_s=1.0, spec=job("gang-mlp", "mlp", 300, gpus=2), steps=300),
        Arrival(at_s=1.5, spec=job("to-be-cancelled", "mlp", 20_000), steps=0, end="CA"),
        Arrival(at_s=2.0, spec=crashing, steps=1200, attempts=2),
        Arrival(at_s=2.5, spec=job("mlp-b", "mlp", 250, lr=0.05), steps=250),
        Arrival(at_s=3.0, spec=impossible, steps=0, end="refused"),
        Arrival(at_s=3.0, spec=job("softmax-b", "softmax", 900), steps=900),
        Arrival(at_s=3.5, spec=job("gang-softmax", "softmax", 600, gpus=2), steps=600),
        Arrival(at_s=4.0, spec=job("mlp-c", "mlp", 400), steps=400),
        Arrival(at_s=4.5, spec=job("softmax-c", "softmax", 1300), steps=1300),
        Arrival(at_s=5.0, spec=job("mlp-d", "mlp", 200), steps=200),
        Arrival(at_s=6.0, spec=job("softmax-d", "softmax", 700), steps=700),
        Arrival(at_s=7.0, spec=job("mlp-e", "mlp", 300), steps=300),
    ]


SWEEP_AT_S: Final = 5.5
SWEEP_STEPS: Final = 150
TRIALS: Final = 8


def sweep() -> SweepSpec:
    """Return the sweep: four learning rates times two widths."""
    return SweepSpec(
        name="digits",
        job=msgspec.structs.replace(job("digits", "mlp", SWEEP_STEPS), model="mlp-trial"),
        space={"lr": Choice(values=(0.02, 0.05, 0.1, 0.2)), "width": Choice(values=(128, 512))},
        search="grid",
        metric="accuracy",
    )
