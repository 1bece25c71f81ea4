"""Traces that can be given away."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock_sim.trace import Trace

_BYTES: Final = 6


def anonymized(trace: Trace, key: bytes) -> Trace:
    """
    Return a trace without names: keyed hashes stand for jobs, users, virtual clusters and models, and time begins at 0.

    The same name under the same key gives the same hash, so that two traces can be put together; without the key
    nobody can find a name by hashing a list of likely ones. Kinds of devices, counts, lengths and the gaps between
    submissions stay.

    Parameters
    ----------
    key : bytes
        1 to 64; whoever has it can test guesses of names.

    Notes
    -----
    BLAKE2b with a key, 48 bits: two of a million names fall together with a probability of 0.2 %.
    """
    first_s = float(trace.submit_s[0]) if len(trace) else 0.0
    return replace(
        trace,
        name="anonymous",
        job_ids=_hashed(trace.job_ids, key, "j"),
        submit_s=trace.submit_s - first_s,
        vcs=_hashed(trace.vcs, key, "v"),
        users=_hashed(trace.users, key, "u"),
        models=_hashed(trace.models, key, "m"),
    )


def _hashed(names: Sequence[str], key: bytes, what: str) -> list[str]:
    known = {name: _hash(name, key, what) if name else "" for name in set(names)}
    return [known[name] for name in names]


def _hash(name: str, key: bytes, what: str) -> str:
    digest = hashlib.blake2b(name.encode(), key=key, digest_size=_BYTES, person=what.encode())
    return what + digest.hexdigest()
