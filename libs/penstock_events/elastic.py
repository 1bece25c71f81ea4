"""How people write an elastic job, and what they meant by it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from penstock_events.spec import MOST_GPUS, JobSpec, SweepSpec
from penstock_events.strict import BadInput

_RANGE: Final = re.compile(r"\s*(\d{1,5})\s*\.\.\s*(\d{1,5})\s*")
_WANTED: Final = f'expected a whole number from 1 to {MOST_GPUS}, or a range such as "1..8"'
_SIZED_BY_SWEEP: Final = (
    "trials are sized by their sweep; give the job one number of devices and one batch_size, and the sweep max_gpus"
)


def widened(raw: Any, path: str = "$") -> Any:
    """
    Return the fields of a job with ``gpus = "1..8"`` written out; everything else as it is.

    Raises
    ------
    BadInput
        If ``gpus`` is a text and no such range; ``path`` says where the job stands.

    Examples
    --------
    >>> widened({"name": "a", "gpus": "2..8"})
    {'name': 'a', 'gpus': 2, 'min_gpus': 2, 'max_gpus': 8}
    >>> widened({"gpus": 4})
    {'gpus': 4}
    >>> widened({"gpus": "8..1"})
    Traceback (most recent call last):
    penstock_events.strict.BadInput: $.gpus: got "8..1"; the fewest devices come first: "1..8"
    """
    text = raw.get("gpus") if isinstance(raw, dict) else None
    if not isinstance(text, str):
        return raw
    least, most = bounds(text, f"{path}.gpus")
    for field, meant in (("min_gpus", least), ("max_gpus", most)):
        if raw.get(field, meant) != meant:
            raise BadInput(f'{path}.{field}: {raw[field]} stands beside gpus = "{text}"; leave one of them out')
    return {**raw, "gpus": least, "min_gpus": least, "max_gpus": most}


def written_out(raw: Any, type_: type[JobSpec | SweepSpec]) -> Any:
    """
    Return the fields of a job, or of a sweep with its job, as :func:`widened` does.

    The job of a sweep has the sweep's name where it has none of its own.
    """
    if type_ is JobSpec:
        return widened(raw)
    job = raw.get("job") if isinstance(raw, dict) else None
    if isinstance(job, dict) and "name" in raw:
        job = {"name": raw["name"], **job}
    return raw if job is None else {**raw, "job": widened(job, "$.job")}


def bounds(text: str, what: str) -> tuple[int, int]:
    """
    Return the fewest and the most devices of a range as people write it; ``what`` begins the message if it is none.

    Raises
    ------
    BadInput
    """
    found = _RANGE.fullmatch(text)
    if found is None:
        raise BadInput(f"{what}: {_WANTED}, got {json.dumps(text)}")
    least, most = map(int, found.groups())
    if least > most > 0:
        raise BadInput(f'{what}: got {json.dumps(text)}; the fewest devices come first: "{most}..{least}"')
    if least < 1 or most > MOST_GPUS:
        raise BadInput(f"{what}: got {json.dumps(text)}; expected from 1 to {MOST_GPUS} devices")
    return least, most


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


def check(spec: JobSpec | SweepSpec) -> None:
    """
    Refuse what cannot be meant so.

    Raises
    ------
    BadInput
        With all that :func:`problems` finds in a job; of a sweep, if its trials were to be elastic.
    """
    if isinstance(spec, JobSpec):
        found = [f"$.{problem}" for problem in problems(spec)]
    else:
        found = [f"$.job.{field}: {_SIZED_BY_SWEEP}" for field in _elastic_fields(spec.job)]
    if found:
        raise BadInput(*found)


def _elastic_fields(spec: JobSpec) -> Iterator[str]:
    if spec.max_gpus:
        yield "gpus"
    if spec.batch is not None:
        yield "batch"


def problems(spec: JobSpec) -> Iterator[str]:
    """Yield what cannot be meant so about an elastic job, each with its field first."""
    if spec.min_gpus > spec.max_gpus:
        yield f"min_gpus: {spec.min_gpus} is more than max_gpus, {spec.max_gpus}; expected the fewest first"
        return  # there is no width for the rest to be held against
    if spec.max_gpus and spec.gpus != 1 and spec.gpus not in spec.widths:
        yield f"gpus: {spec.gpus} is outside of min_gpus, {spec.min_gpus}, to max_gpus, {spec.max_gpus}; leave it out"
    if spec.max_gpus and not spec.batch_size and spec.batch is None:
        yield (
            f"gpus: {spec.min_gpus or 1} to {spec.max_gpus} devices need a batch size to divide among them; set "
            "`batch_size`, over all devices, or `batch = { min, max }` where it may change (--batch 256, or 64..512)"
        )
    most = spec.batch.max if spec.batch is not None else spec.batch_size
    if spec.elastic and 0 < most < spec.widths[0]:
        field = "batch.max" if spec.batch is not None else "batch_size"
        yield f"{field}: {most} is less than the fewest devices, {spec.widths[0]}; expected a sample for each at least"
    if spec.batch is not None and spec.batch_size and not spec.batch.min <= spec.batch_size <= spec.batch.max:
        yield (
            f"batch_size: {spec.batch_size} is outside of batch, {spec.batch.min} to {spec.batch.max}; it is what the "
            "job begins with and its learning rate is for: choose one of those, or leave it out"
        )
    if spec.batch is not None and spec.batch.per_gpu_max and spec.batch.per_gpu_max * spec.widths[-1] < spec.batch.min:
        yield (
            f"batch: the smallest, {spec.batch.min}, does not fit on {spec.widths[-1]} devices of at most "
            f"{spec.batch.per_gpu_max} samples each; lower min, or raise max_gpus or per_gpu_max"
        )
    if spec.elastic and spec.sharing != "exclusive":
        yield (
            f"sharing: an elastic job has its devices to itself, got `{spec.sharing}`; leave `sharing` out, or give "
            "it a fixed number of devices and a fixed batch"
        )
    if spec.elastic and spec.processes == "node":
        yield "processes: an elastic job has a process for each device, got `node`; leave `processes` out"
