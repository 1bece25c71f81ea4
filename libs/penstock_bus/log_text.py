"""
The log as text, one fact a line: what ``penstock events -f -o json`` prints, simulations write, and archives hold.

The facts of a commit stand on lines one after the other, with the same sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

import msgspec

from penstock_bus.port import Delivery
from penstock_log import UnknownFact, codec


class LogTextLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line, in the order of the fields of :class:`penstock_log.views.EventView`; the last two stand in archives."""

    seq: int
    stored_s: float
    subject: str
    actor: str
    cause: int
    type: str
    at_s: float
    fact: msgspec.Raw
    id: str = ""
    trace: str = ""


class _LineBegin(msgspec.Struct, frozen=True, gc=False):
    """The fields of a line that the facts of one commit have in common, in the same order."""

    seq: int
    stored_s: float
    subject: str
    actor: str
    cause: int


class _LineEnd(msgspec.Struct, frozen=True):
    """The fields of a line that archives have besides."""

    id: str
    trace: str


_NO_TIME: Final = b'"since_s":null'  # what most ranks have
_encoder: Final = msgspec.json.Encoder()


def encode(*deliveries: Delivery, whole: bool = False) -> bytes:
    """
    Return the lines of commits, each with its line end.

    Parameters
    ----------
    whole : bool
        Write the commits' own ids and traces too.

    Raises
    ------
    CodecError
        If a number is not finite.
    """
    found: list[bytes] = []
    begins = _begins(deliveries)
    ends = _ends(deliveries) if whole else repeat(b"}\n", len(begins))
    for begin, body, end in zip(begins, _bodies(deliveries), ends, strict=True):
        tag, rest = body.split(b',"at_s":', 1)  # no text within quotes has such quotes
        at_s, rest = rest.split(b",", 1)
        found += (begin, b",", tag[1:], b',"at_s":', at_s, b',"fact":{', rest, end)
    text = b"".join(found)
    if text.count(b"null") != text.count(_NO_TIME):
        for delivery in deliveries:
            codec.encode(delivery.commit)  # refuses what is not finite
    return text


def _begins(deliveries: Sequence[Delivery]) -> list[bytes]:
    """Return the beginning of each fact's line, up to the fact's type: what its commit says."""
    begins = [
        _LineBegin(delivery.seq, delivery.stored_s, delivery.subject, delivery.commit.actor, delivery.commit.cause)
        for delivery in deliveries
        for _ in delivery.commit.facts
    ]
    return _encoder.encode_lines(begins).split(b"}\n")[:-1]


def _ends(deliveries: Sequence[Delivery]) -> list[bytes]:
    """Return the end of each fact's line, with what else its commit says."""
    ends = [
        b"," + _encoder.encode(_LineEnd(delivery.commit.id, delivery.commit.trace))[1:] + b"\n"
        for delivery in deliveries
    ]
    return [end for delivery, end in zip(deliveries, ends, strict=True) for _ in delivery.commit.facts]


def _bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    """Return each fact as JSON that begins with its type and its time."""
    facts = [fact for delivery in deliveries for fact in delivery.commit.facts]
    if any(fact.__class__ is UnknownFact for fact in facts):
        return [_unknown(fact) if isinstance(fact, UnknownFact) else _encoder.encode(fact) for fact in facts]
    return _encoder.encode_lines(facts).split(b"\n")[:-1]


def _unknown(fact: UnknownFact) -> bytes:
    rest = {key: value for key, value in fact.raw.items() if key != "type" and not _is_time(key, fact)}
    tag, at_s = _encoder.encode(fact.tag), _encoder.encode(fact.at_s)
    return b'{"type":' + tag + b',"at_s":' + at_s + b"," + _encoder.encode(rest)[1:]


def _is_time(key: str, fact: UnknownFact) -> bool:
    """Say whether a field is the time that stands beside an unknown fact; any other ``at_s`` stays within."""
    return key == "at_s" and fact.at_s == fact.raw["at_s"] and bool(fact.at_s)
