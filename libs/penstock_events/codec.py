"""The one place where facts become bytes and bytes become facts."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

from penstock_events.base import Event
from penstock_events.job import JobCancelled, JobFinished, JobHeld, JobReleased, JobSubmitted
from penstock_events.node import NodeJoined, NodeLeft
from penstock_events.policy import PolicySet
from penstock_events.profile import SamplesRequested, WorkloadProfiled, WorkloadScaled
from penstock_events.rank import JobsRanked
from penstock_events.request import NodeDrained, NodeRemoved, NodeResumed, SweepCancelled, SweepSubmitted
from penstock_events.round import RoundDecided
from penstock_events.run import LaneChanged, RunCheckpointed, RunEnded, RunMeasured, RunStarted, RunWarned
from penstock_events.scale import ScaleDecided
from penstock_events.sweep import (
    SweepFinished,
    TrialFinished,
    TrialGroupOpened,
    TrialRetried,
    TrialsMeasured,
    TrialsScaled,
)
from penstock_events.upcasts import upcast

AnyEvent = (
    JobSubmitted
    | JobCancelled
    | JobHeld
    | JobReleased
    | JobFinished
    | RunStarted
    | RunCheckpointed
    | RunEnded
    | RunWarned
    | RunMeasured
    | LaneChanged
    | NodeJoined
    | NodeLeft
    | SamplesRequested
    | WorkloadProfiled
    | WorkloadScaled
    | JobsRanked
    | RoundDecided
    | ScaleDecided
    | SweepSubmitted
    | SweepCancelled
    | NodeDrained
    | NodeRemoved
    | NodeResumed
    | PolicySet
    | TrialGroupOpened
    | TrialFinished
    | TrialsScaled
    | TrialsMeasured
    | TrialRetried
    | SweepFinished
)
"""Every fact of today. A ``match`` over it ends in ``assert_never``, or in ``case _`` where a fold ignores the rest."""


class Commit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    One message of the log: several facts of one entity that became true together.

    Attributes
    ----------
    id : str
        Also the message id: a retry under the same id is stored once.
    actor : str
        Who wrote it, such as ``matcher/7f3a``.
    facts : tuple of AnyEvent
    cause : int
        Stream sequence of the commit that led to this one; 0 where a person did.
    trace : str
        W3C trace id; empty where tracing is off.
    """

    id: str
    actor: str
    facts: tuple[AnyEvent, ...]
    cause: int = 0
    trace: str = ""


class CodecError(ValueError):
    """Bytes that are no commit, or a commit that must not become bytes."""


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Commit)
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what msgspec raises on foreign bytes


def encode(commit: Commit) -> bytes:
    """
    Return the commit as JSON.

    Raises
    ------
    CodecError
        If a number is not finite: JSON has no word for it, and it would come back as null.
    """
    body = _encoder.encode(commit)
    if b"null" in body and (path := _not_finite(msgspec.to_builtins(commit), "commit")):
        raise CodecError(f"{path} is not a finite number; the log holds finite numbers only")
    return body


def decode(body: bytes) -> Commit:
    """
    Return the commit that the bytes hold, its facts upcast to today's tags.

    Raises
    ------
    CodecError
        If the bytes are not JSON, or not a commit of known facts.
    """
    try:
        return _decoder.decode(body)
    except _UNREADABLE:
        return _decode_upcast(body)


def _decode_upcast(body: bytes) -> Commit:
    try:
        raw = msgspec.json.decode(body)
        if isinstance(raw, dict) and isinstance(raw.get("facts"), list):
            raw["facts"] = [upcast(fact) if isinstance(fact, dict) else fact for fact in raw["facts"]]
        return msgspec.convert(raw, Commit)
    except (*_UNREADABLE, KeyError, TypeError) as error:
        raise CodecError(f"not a commit of known facts: {error}") from error


def _not_finite(value: Any, path: str) -> str:
    if isinstance(value, float):
        return "" if math.isfinite(value) else path
    if isinstance(value, dict):
        items = [(f"{path}.{key}", item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
    else:
        return ""
    return next((found for where, item in items if (found := _not_finite(item, where))), "")


def tag_of(event: Event | type[Event]) -> str:
    """Return the tag of an event or of its type, such as ``job.submitted.v1``."""
    return str(event.__struct_config__.tag)
