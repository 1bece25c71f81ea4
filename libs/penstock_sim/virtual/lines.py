"""
A log as text: one fact a line, in the form that ``penstock events -f -o json`` prints.

So the same readers take a cluster's log and a simulated one.

```json
{"seq":1,"stored_s":1.0,"subject":"penstock.evt.job.j1","actor":"gateway/sim","cause":0,"type":"job.cancelled.v1",
 "at_s":1.0,"fact":{"job_id":"j1"}}
```
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from typing import Any, Final

import msgspec

from penstock_bus import Delivery
from penstock_bus.logger import get_logger
from penstock_events import AnyEvent, Commit, codec, subject_of, tag_of


class _Line(msgspec.Struct, frozen=True):
    """A line, in the order of the fields of :class:`penstock_events.views.EventView`."""

    seq: int
    stored_s: float
    subject: str
    actor: str
    cause: int
    type: str
    at_s: float
    fact: msgspec.Raw


_log = get_logger("penstock.sim")
_NO_TIME: Final = b'"since_s":null'  # what most ranks have
_tag_of: Final = cache(tag_of)
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(_Line)


def encode(*deliveries: Delivery) -> bytes:
    """
    Return the lines of commits, each with its line end.

    Raises
    ------
    CodecError
        If a number is not finite.
    """
    text = _encoder.encode_lines([_line(delivery, fact) for delivery in deliveries for fact in delivery.commit.facts])
    if b"null" in text and b"null" in text.replace(_NO_TIME, b""):
        for delivery in deliveries:
            codec.encode(delivery.commit)  # refuses what is not finite
    return text


def decode(lines: Iterable[bytes | str]) -> Iterator[Delivery]:
    """
    Yield the commits of a log, in its order; facts of older tags are upcast, blank lines are skipped.

    A commit with a fact that does not belong on its subject is left out, as every reader of the log leaves it out.

    Raises
    ------
    ValueError
        If a line is not one of a log; it says which.
    """
    numbered = ((number, _parsed(line, number)) for number, line in enumerate(lines, start=1) if line.strip())
    for seq, group in groupby(numbered, key=lambda pair: pair[1].seq):
        found = list(group)
        first = found[0][1]
        facts = tuple(_fact(line, number) for number, line in found)
        if any(subject_of(fact) != first.subject for fact in facts):
            _log.warning("commit_dropped", seq=seq, subject=first.subject, types=[tag_of(fact) for fact in facts])
            continue
        commit = Commit(id=str(seq), actor=first.actor, facts=facts, cause=first.cause)
        yield Delivery(seq=seq, subject=first.subject, stored_s=first.stored_s, pending=0, commit=commit)


def _line(delivery: Delivery, fact: AnyEvent) -> _Line:
    body = _encoder.encode(fact)  # {"type":…,"at_s":…,REST
    commit = delivery.commit
    return _Line(
        delivery.seq,
        delivery.stored_s,
        delivery.subject,
        commit.actor,
        commit.cause,
        _tag_of(type(fact)),
        fact.at_s,
        msgspec.Raw(b"{" + body.split(b",", 2)[2]),
    )


def _parsed(line: bytes | str, number: int) -> _Line:
    try:
        return _decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise ValueError(
            f"line {number} is no fact of a log: {error}; expected lines as `penstock events -f -o json` prints them"
        ) from error


def _fact(line: _Line, number: int) -> AnyEvent:
    try:
        fact: dict[str, Any] = {"type": line.type, "at_s": line.at_s, **msgspec.json.decode(line.fact)}
        (found,) = codec.decode(msgspec.json.encode({"id": "", "actor": "", "facts": [fact]})).facts
    except (codec.CodecError, msgspec.MsgspecError, TypeError) as error:
        raise ValueError(f"line {number}: {error}; was it written by a later version?") from error
    return found
