"""How people write an elastic job, and what they meant by it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from penstock_events.spec import JobSpec

_RANGE: Final = re.compile(r"\s*(\d{1,5})\s*\.\.\s*(\d{1,5})\s*")


def widened(raw: Any) -> Any:
    """
    Return the fields of a job with ``gpus = "1..8"`` written out; everything else as it is.

    Examples
    --------
    >>> widened({"name": "a", "gpus": "2..8"})
    {'name': 'a', 'gpus': 2, 'min_gpus': 2, 'max_gpus': 8}
    >>> widened({"gpus": 4})
    {'gpus': 4}
    """
    text = raw.get("gpus") if isinstance(raw, dict) else None
    found = _RANGE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return raw
    least, most = map(int, found.groups())
    return {**raw, "gpus": least, "min_gpus": least, "max_gpus": most}


def settled(spec: JobSpec) -> JobSpec:
    """
    Return a job as it begins: at its smallest width, with a batch size, and that as its base.

    Examples
    --------
    >>> from penstock_events.spec import Batch
    >>> job = settled(JobSpec(name="a", command=("x",), max_gpus=8, batch=Batch(min=32, max=256)))
    >>> job.gpus, job.min_gpus, job.batch_size, job.batch.base
    (1, 1, 32, 32)
    """
    if spec.max_gpus:
        least = max(1, spec.min_gpus)
        gpus = spec.gpus if least <= spec.gpus <= spec.max_gpus else least
        spec = msgspec.structs.replace(spec, min_gpus=least, gpus=gpus)
    if (batch := spec.batch) is not None:
        base = batch.base or spec.batch_size or batch.min
        if not batch.base and batch.min <= base <= batch.max:
            batch = msgspec.structs.replace(batch, base=base)
        spec = msgspec.structs.replace(spec, batch=batch, batch_size=spec.batch_size or base)
    return spec


def problems(spec: JobSpec) -> Iterator[str]:
    """Yield what cannot be meant so about an elastic job, each with its field first."""
    if spec.min_gpus > spec.max_gpus:
        yield f"min_gpus: {spec.min_gpus} is more than max_gpus, {spec.max_gpus}; expected the fewest first"
    if spec.max_gpus and not spec.batch_size and spec.batch is None:
        yield (
            "batch_size: an elastic job needs one, over all of its devices, to be divided among them; set it, or "
            "`batch = { min, max }` where it may change"
        )
    if spec.batch is not None and spec.batch_size and not spec.batch.min <= spec.batch_size <= spec.batch.max:
        yield f"batch_size: {spec.batch_size} is outside of batch, {spec.batch.min} to {spec.batch.max}"
    if spec.batch is not None and spec.batch.per_gpu_max and spec.batch.per_gpu_max * spec.widths[-1] < spec.batch.min:
        yield (
            f"batch: the smallest, {spec.batch.min}, does not fit on {spec.widths[-1]} devices of at most "
            f"{spec.batch.per_gpu_max} samples each; lower min, or raise max_gpus or per_gpu_max"
        )
    if spec.elastic and spec.sharing != "exclusive":
        yield f"sharing: an elastic job has its devices to itself, got `{spec.sharing}`"
    if spec.elastic and spec.processes == "node":
        yield "processes: an elastic job has a process for each device, got `node`"
