"""Records made of other records, by the names of their fields."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def compose(type_: type[T], *records: msgspec.Struct, **own: Any) -> T:
    """
    Return a record with ``own`` fields, and each other one from the first of some records that has it.

    Fields that none of them has keep their defaults.

    Examples
    --------
    >>> from penstock_log import JobSpec, ProfileSample
    >>> compose(JobSpec, ProfileSample(sample_id="s", kind="fast", iterations=5, gpus=2), name="a", command=("x",)).gpus
    2
    """
    for record in records:
        for name in _shared_fields(type_, type(record)):
            if name not in own:
                own[name] = getattr(record, name)
    return type_(**own)


@cache
def _shared_fields(type_: type[msgspec.Struct], record: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in type_.__struct_fields__ if name in record.__struct_fields__)
