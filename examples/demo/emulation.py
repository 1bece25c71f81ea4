"""
The demo's devices, emulated so that a step of the network takes its declared time on any host.

``python -m demo.emulation`` prints the CPU seconds of a step on this host. It is a process of its own because the
numeric library has to be kept to one thread before anything imports it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Final

from demo import workload

MOST_SPEED: Final = 0.5
"""Of a fast device: beyond that two cores have no room for two fast devices, two slow ones and the host's own."""
WARM_UP, STEPS, BATCH = 5, 60, 128


def description() -> str:
    """Return the devices as ``penstock up --emulate`` takes them, after a second of measuring."""
    asked = [sys.executable, "-m", "demo.emulation"]
    printed = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout
    return described(float(printed))


def described(step_s: float) -> str:
    """
    Return the devices for a host on which a step takes so many CPU seconds.

    Examples
    --------
    >>> described(0.004)
    'fast:2@0.400:16GiB,slow:2@0.160:16GiB'
    >>> described(0.020)
    'fast:2@0.500:16GiB,slow:2@0.200:16GiB'
    """
    fast = min(MOST_SPEED, step_s / workload.FAST_STEP_S["mlp"])
    emulated = {kind: fast * workload.SPEEDS[kind] for kind in ("fast", "slow")}
    return ",".join(f"{kind}:{workload.DEVICES[kind]}@{speed:.3f}:16GiB" for kind, speed in emulated.items())


def _step_s() -> float:
    """Return the CPU seconds of a training step of the network: the median of some."""
    from digits import Momentum, jittered, load  # noqa: PLC0415 - it sets the number of threads, which nobody else is to have
    from digits_mlp import Mlp  # noqa: PLC0415 - as above

    images, model = load()[0], Mlp(512)
    momentum, taken_s = Momentum(model, lr=1e-5), []
    for _ in range(WARM_UP + STEPS):
        before_s = time.process_time()
        _, gradients = model.gradients(jittered(images.x[:BATCH], momentum.rng), images.y[:BATCH])
        momentum.step(gradients)
        taken_s.append(time.process_time() - before_s)
    return statistics.median(taken_s[WARM_UP:])


if __name__ == "__main__":
    print(_step_s())
