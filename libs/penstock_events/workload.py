"""Which jobs are the same workload: the key under which iteration times are remembered."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec

from penstock_events.spec import JobSpec


def key(spec: JobSpec) -> str:
    """
    Return the workload key of a job: 16 hexadecimal digits.

    With a model named, the key is of model, batch size, script digest and program: arguments such as the number of
    epochs do not change an iteration. Without one, all arguments count. Of an elastic job the batch size is left out,
    since it changes, and it is known how its iterations go with it.

    Examples
    --------
    >>> a = JobSpec(name="a", command=("python", "train.py", "--epochs", "3"), model="mlp")
    >>> b = JobSpec(name="b", command=("python", "train.py", "--epochs", "9"), model="mlp")
    >>> key(a) == key(b)
    True
    """
    program = spec.command[:2] if spec.model else spec.command
    return _digest((spec.model, 0 if spec.batch is not None else spec.batch_size, spec.digest, program))


@lru_cache(maxsize=4096)  # most jobs are of a workload that was there before
def _digest(parts: tuple[str, int, str, tuple[str, ...]]) -> str:
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:16]
