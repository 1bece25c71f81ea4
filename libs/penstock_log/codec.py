"""
Codec of the log: the one place where facts become bytes and bytes become facts.

:func:`encode` and :func:`decode` turn a :class:`Commit` into JSON and back; :func:`decode_at` also checks that each
fact belongs to the entity on whose subject the commit stands. :func:`upcast` turns a fact of an older tag, step by
step, into a fact of today. A fact whose tag this version does not know is kept as it is, an :class:`UnknownFact`
(docs/adr/0015).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, TypeVar, Union, get_args

import msgspec

from penstock_log import subjects
from penstock_log.aggregation_facts import (
    AggregationAsked,
    AggregationAssigned,
    AggregationLeft,
    AggregationMeasured,
    AggregationRefused,
    AggregatorEnded,
    AggregatorsAllocated,
    AggregatorsOffered,
    AggregatorsRecycled,
    AggregatorStarted,
    AggregatorUnreachable,
    PartMoved,
)
from penstock_log.allocation_facts import (
    AllocationAdded,
    AllocationPaused,
    AllocationRemoved,
    AllocationResumed,
    PilotEnded,
    PilotPlanned,
    PilotsPaused,
    PilotStarted,
    PilotSubmitted,
    PilotWaits,
    PilotWithdrawn,
)
from penstock_log.archive_facts import JobsArchived, LogCopied, LogTrimmed
from penstock_log.decision_facts import (
    JobsRanked,
    RoundDecided,
    ScaleDecided,
    SweepFinished,
    TrialFinished,
    TrialGroupOpened,
    TrialRetried,
    TrialsMeasured,
    TrialsScaled,
)
from penstock_log.facts import (
    DeviceDrained,
    DeviceFailed,
    DeviceRecovered,
    DeviceResumed,
    Event,
    JobCancelled,
    JobEntered,
    JobFinished,
    JobHeld,
    JobReleased,
    JobSubmitted,
    JobTimedOut,
    JobTimeSet,
    JobUnblocked,
    LaneChanged,
    NodeDrained,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    NodeRemoved,
    NodeResumed,
    PolicySet,
    ReservationCancelled,
    ReservationMade,
    RunBusyAgain,
    RunCheckpointed,
    RunEnded,
    RunIdle,
    RunMeasured,
    RunRewound,
    RunStarted,
    RunUnparked,
    RunWarned,
    SamplesRequested,
    SweepCancelled,
    SweepSubmitted,
    UnknownFact,
    UserRemoved,
    UserSet,
    WorkloadProfiled,
    WorkloadScaled,
)
from penstock_log.login_facts import NodeLoginIssued, NodeLoginRevoked, NodeTokenIssued
from penstock_log.memory_facts import MemoryOffered, SlabsEvicted, SlabsLent, SlabsReturned
from penstock_log.notification_facts import NotificationRuleRemoved, NotificationRuleSet, NotificationSent

AnyEvent = Union[
    JobSubmitted,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobUnblocked,
    JobTimedOut,
    JobTimeSet,
    JobEntered,
    JobFinished,
    RunStarted,
    RunCheckpointed,
    RunEnded,
    RunRewound,
    RunWarned,
    RunIdle,
    RunBusyAgain,
    RunUnparked,
    RunMeasured,
    LaneChanged,
    NodeJoined,
    NodeLeaving,
    NodeLeft,
    DeviceFailed,
    DeviceRecovered,
    SamplesRequested,
    WorkloadProfiled,
    WorkloadScaled,
    JobsRanked,
    RoundDecided,
    ScaleDecided,
    SweepSubmitted,
    SweepCancelled,
    NodeDrained,
    NodeRemoved,
    NodeResumed,
    DeviceDrained,
    DeviceResumed,
    PolicySet,
    ReservationMade,
    ReservationCancelled,
    UserSet,
    UserRemoved,
    TrialGroupOpened,
    TrialFinished,
    TrialsScaled,
    TrialsMeasured,
    TrialRetried,
    SweepFinished,
    LogCopied,
    JobsArchived,
    LogTrimmed,
    NodeTokenIssued,
    NodeLoginIssued,
    NodeLoginRevoked,
    MemoryOffered,
    SlabsLent,
    SlabsReturned,
    SlabsEvicted,
    AggregatorsOffered,
    AggregatorStarted,
    AggregatorEnded,
    AggregatorUnreachable,
    AggregationAsked,
    AggregationMeasured,
    PartMoved,
    AggregationLeft,
    AggregatorsAllocated,
    AggregatorsRecycled,
    AggregationAssigned,
    AggregationRefused,
    NotificationRuleSet,
    NotificationRuleRemoved,
    NotificationSent,
    AllocationAdded,
    AllocationRemoved,
    AllocationPaused,
    AllocationResumed,
    PilotPlanned,
    PilotSubmitted,
    PilotWaits,
    PilotWithdrawn,
    PilotStarted,
    PilotEnded,
    PilotsPaused,
]
"""Every fact of today. A ``match`` over it ends in ``assert_never``, or in ``case _`` where a fold ignores the rest."""

LoggedFact = Union[AnyEvent, UnknownFact]

LOG_FORMAT: Final = 1
"""
What a version has to know to read a log: one more whenever a fact gets a new version of its tag.

The log's stream has the number with it. An earlier version could only drop such facts, and would hold what is not true;
so it refuses the log by its number. Facts with new tags need no new number: who does not know them ignores them.
"""

E = TypeVar("E", bound=Event)


class Commit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """
    One message of the log: several facts of one entity that became true together.

    Attributes
    ----------
    id : str
        Also the message id: a retry under the same id is stored once.
    actor : str
        Who wrote it, such as ``matcher/7f3a``.
    facts : tuple of AnyEvent or UnknownFact
    cause : int
        Stream sequence of the commit that led to this one; 0 where a person did.
    trace : str
        W3C trace id, and behind a ``-`` its parent's span, where the request came with them; see
        :mod:`penstock_log.tracing`.
    """

    id: str
    actor: str
    facts: tuple[LoggedFact, ...]
    cause: int = 0
    trace: str = ""

    @property
    def known(self) -> tuple[AnyEvent, ...]:
        """The facts without the unknown ones."""
        return tuple(fact for fact in self.facts if not isinstance(fact, UnknownFact))


class CodecError(ValueError):
    """Bytes that are no commit, or a commit that must not become bytes."""


class MisplacedFact(CodecError):
    """A commit with a fact that does not belong to the entity on whose subject the commit stands."""


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Commit)
_TO_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_ZEROS: Final = b"0" * 19  # no whole number of fewer digits needs more than 64 bits
_BEFORE_NUMBERS: Final = frozenset(b":,[- \t\r\n")
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # what msgspec raises on foreign bytes


def encode(commit: Commit) -> bytes:
    """
    Return the commit as JSON.

    Raises
    ------
    CodecError
        If a number is not finite: JSON cannot express it, and it would come back as null.
    """
    for fact in commit.facts:  # a loop by hand: a third of what map() or a look into the bytes takes
        if fact.__class__ is UnknownFact:
            commit = _as_written(commit)
            break
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
        If the bytes are not JSON, not a commit, or hold another version of a known fact.
    """
    try:
        return _decoder.decode(body)
    except _UNREADABLE:
        return _decode_open(body)


def decode_at(subject: str, body: bytes) -> Commit:
    """
    Return the commit that stands on a subject of the log.

    Permissions say who writes a subject; this check ensures that readers accept only the entity's own facts there.

    Raises
    ------
    MisplacedFact
        If one of its facts is of another entity.
    CodecError
        If the bytes are no commit that :func:`decode` takes, or hold a whole number of more than 64 bits.
    """
    try:  # as decode does: a call less, where each of a million messages comes by
        commit = _decoder.decode(body)
    except _UNREADABLE:
        commit = _decode_open(body)
    if _has_long_number(body) and (path := _too_large(msgspec.to_builtins(commit), "commit")):
        raise CodecError(f"{path} is a whole number of more than 64 bits; no snapshot and no answer could hold it")
    for fact in commit.facts:
        try:  # as belongs does: a call less
            prefix, id_of = _PLACES[fact.__class__]
            entity_id = id_of(fact)
            is_placed = prefix + entity_id == subject and "." not in entity_id and "/" not in entity_id
        except KeyError:
            is_placed = belongs(fact, subject)
        if not is_placed:
            raise MisplacedFact(_misplaced(subject, fact))
    return commit


def belongs(fact: Event, subject: str) -> bool:
    """
    Say whether a fact may stand on a subject of the log.

    An unknown fact has to be of the subject's kind, and of its entity as far as it names one: an extension's tags begin
    with ``ext.NAME.``, and every other tag with the kind.
    """
    place = _PLACES.get(fact.__class__)
    if place is not None:
        entity_id = place[1](fact)
        return place[0] + entity_id == subject and "." not in entity_id and "/" not in entity_id
    if not isinstance(fact, UnknownFact):
        return False
    try:
        kind, entity_id = subjects.entity_of(subject)
    except ValueError:
        return False
    named = next((fact.raw[name] for name in _NAMES.get(kind, ()) if name in fact.raw), entity_id)
    return fact.tag.startswith(f"{kind}.") and named == entity_id


def fields_of(fact: Event) -> dict[str, Any]:
    """Return a fact as the JSON object that the log holds, its tag included."""
    if isinstance(fact, UnknownFact):
        return dict(fact.raw)
    found: dict[str, Any] = msgspec.to_builtins(fact)
    return found


def read_as(fact: UnknownFact, wanted: type[E]) -> E | None:
    """
    Return an unknown fact as one that the caller knows; None where it is another, or of another form.

    Parameters
    ----------
    wanted : type
        A subclass of :class:`Event` with a tag, or a union of such.

    Examples
    --------
    >>> class Priced(Event, frozen=True, kw_only=True, tag="ext.billing.priced.v1"):
    ...     cents: int
    >>> raw = {"type": "ext.billing.priced.v1", "at_s": 1.0, "cents": 5}
    >>> read_as(UnknownFact(tag=raw["type"], at_s=1.0, raw=raw), Priced)
    Priced(at_s=1.0, cents=5)
    """
    try:
        return msgspec.convert(fact.raw, wanted)
    except msgspec.ValidationError:
        return None


def _has_long_number(body: bytes) -> bool:
    """Say whether there may be a whole number of 19 digits or more: a few tenths of a microsecond for each message."""
    digits = body.translate(_TO_ZEROS)
    at = digits.find(_ZEROS)
    while at > 0:
        if body[at - 1] in _BEFORE_NUMBERS:
            return True
        at = digits.find(_ZEROS, at + len(_ZEROS))
    return False


def subject_of(fact: Event) -> str:
    """
    Return the log subject on which a fact belongs.

    Examples
    --------
    >>> subject_of(JobHeld(job_id="j1", at_s=0.0))
    'penstock.evt.job.j1'
    """
    prefix, entity_id = _PLACES[type(fact)]
    return prefix + entity_id(fact)


def _misplaced(subject: str, fact: Event) -> str:
    found = subjects.writer_of(subject) or "somebody"
    if isinstance(fact, UnknownFact):
        return f"{found} wrote {tag_of(fact)} on {subject}, where such a fact does not belong; the commit is dropped"
    wanted = subject_of(fact)
    return f"{found} wrote {tag_of(fact)} on {subject}, and that fact belongs on {wanted}; the commit is dropped"


def _decode_open(body: bytes) -> Commit:
    """Decode a commit with facts of older tags, or with unknown ones."""
    try:
        raw = msgspec.json.decode(body)
        if not isinstance(raw, dict) or not isinstance(raw.get("facts"), list):
            return msgspec.convert(raw, Commit)
        facts = [upcast(fact) if isinstance(fact, dict) else fact for fact in raw["facts"]]
        unknown = [_unknown(fact) for fact in facts]
        known = [fact for fact, found in zip(facts, unknown) if found is None]
        commit = msgspec.convert({**raw, "facts": known}, Commit)
    except (*_UNREADABLE, KeyError, TypeError) as error:
        raise CodecError(f"not a commit of known facts: {error}") from error
    if len(known) == len(facts):
        return commit
    rest = iter(commit.facts)
    return msgspec.structs.replace(commit, facts=tuple(found or next(rest) for found in unknown))


def _unknown(raw: Any) -> UnknownFact | None:
    """
    Return an unknown fact; None for what has to be read as a known one, or refused.

    Another version of a known fact is not unknown: a fold that ignored it would hold what is not true.
    """
    tag = raw.get("type") if isinstance(raw, dict) else None
    if not isinstance(tag, str) or _family(tag) in _FAMILIES or not _TAG.fullmatch(tag):
        return None
    at_s = raw.get("at_s")
    is_time = isinstance(at_s, (int, float)) and not isinstance(at_s, bool) and -(2**63) < at_s < 2**63
    return UnknownFact(at_s=float(at_s) if is_time else 0.0, tag=tag, raw=raw)


def _family(tag: str) -> str:
    """Return what the versions of a fact have in common: ``run.ended`` of ``run.ended.v9``."""
    return ".".join(tag.split(".", 2)[:2])


def _as_written(commit: Commit) -> Any:
    """Return the commit with its unknown facts as the JSON objects that they were."""
    facts = tuple(fact.raw if isinstance(fact, UnknownFact) else fact for fact in commit.facts)
    return msgspec.structs.replace(commit, facts=facts)


def _not_finite(value: Any, path: str) -> str:
    return _where(lambda number: isinstance(number, float) and not math.isfinite(number), value, path)


def _too_large(value: Any, path: str) -> str:
    return _where(lambda number: isinstance(number, int) and not -(2**63) <= number < 2**64, value, path)


def _where(is_bad: Callable[[Any], bool], value: Any, path: str) -> str:
    """Return the place of the first bad number; empty where there is none."""
    if isinstance(value, (int, float)):
        return path if is_bad(value) else ""
    if isinstance(value, dict):
        items = [(f"{path}.{key}", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
    else:
        return ""
    return next((found for where, item in items if (found := _where(is_bad, item, where))), "")


def tag_of(event: Event | type[Event]) -> str:
    """Return the tag of an event or of its type, such as ``job.submitted.v1``."""
    if isinstance(event, UnknownFact):
        return event.tag
    return str(event.__struct_config__.tag)


def kind_of(event: Event | type[Event]) -> str:
    """
    Return the entity kind to which a fact belongs: its tag begins with it.

    Examples
    --------
    >>> kind_of(NodeDrained)
    'request'
    """
    return tag_of(event).partition(".")[0]


_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "job": ("job_id",),
    "run": ("job_id",),
    "node": ("node_id",),
    "profile": ("key",),
    "rank": ("pool",),
    "round": ("pool",),
    "scale": ("pool",),
    "sweep": ("sweep_id",),
    "policy": ("pool",),
    "user": ("user",),
    "notify": ("user",),
    "request": ("sweep_id", "node_id"),
    "archive": ("archive",),
    "alloc": ("name",),
    "pilot": ("name",),
    "login": ("token",),
    "memory": ("node_id",),
    "aggregator": ("node_id",),
    "aggregation": ("pool",),
}
"""Entity kind → the field of its facts that holds the entity's id: the first of these that a fact has."""


def _place(event: type[Event]) -> tuple[str, Callable[[Any], str]]:
    kind = kind_of(event)
    if kind in {"user", "notify"}:
        return subjects.prefix(kind), lambda fact: subjects.person(fact.user) if fact.user else ""
    name = next(name for name in _NAMES[kind] if name in event.__struct_fields__)
    return subjects.prefix(kind), attrgetter(name)


_PLACES: Final[dict[type, tuple[str, Callable[[Any], str]]]] = {event: _place(event) for event in get_args(AnyEvent)}

Json = dict[str, Any]


def _node_joined_v1(old: Json) -> Json:
    """``v1`` gave ``gpus``, ``kind`` and ``memory_bytes`` of a node with devices of one kind."""
    count, kind, memory = old.pop("gpus"), old.pop("kind"), old.pop("memory_bytes", 0)
    device = {"kind": kind, "memory_bytes": memory, "backend": "cuda"}
    return {**old, "type": "node.joined.v2", "devices": [{**device, "index": i} for i in range(count)]}


UPCASTS: Final[dict[str, Callable[[Json], Json]]] = {"node.joined.v1": _node_joined_v1}

_TAG: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
_FAMILIES: Final = frozenset(_family(tag) for tag in (*map(tag_of, get_args(AnyEvent)), *UPCASTS))


def upcast(fact: Json) -> Json:
    """Return the fact under today's tag; one that is of today comes back as it is."""
    while (step := UPCASTS.get(fact.get("type", ""))) is not None:
        fact = step(dict(fact))
    return fact
