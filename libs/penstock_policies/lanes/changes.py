"""What a board answers: what has changed, in the order in which it is to be carried out."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Opened(msgspec.Struct, frozen=True):
    """There is a new lane."""

    lane: int
    size_bytes: int


class Resized(msgspec.Struct, frozen=True):
    """A lane has another size. Nobody runs in it at this moment: its ephemeral memory is empty."""

    lane: int
    size_bytes: int


class Closed(msgspec.Struct, frozen=True):
    """A lane has no member left, and is gone; its number is not used again."""

    lane: int


class Entered(msgspec.Struct, frozen=True):
    """A job that has waited, or has just arrived, may start: it is a member of a lane."""

    job_id: str
    lane: int


class Waits(msgspec.Struct, frozen=True):
    """A job that has just arrived has to wait; it must take nothing of the device yet."""

    job_id: str
    reason: str


class Refused(msgspec.Struct, frozen=True):
    """A job that has not started needs more than the whole device, and is off the board."""

    job_id: str
    reason: str


class Moved(msgspec.Struct, frozen=True):
    """A member takes its turns in another lane from now on."""

    job_id: str
    lane: int


class Parked(msgspec.Struct, frozen=True):
    """A member stays as it is, at its boundary, and gets no turn until it is unparked."""

    job_id: str
    reason: str


class Unparked(msgspec.Struct, frozen=True):
    """A parked job is a member of a lane again."""

    job_id: str
    lane: int


class Evicted(msgspec.Struct, frozen=True):
    """A job has to leave the device: it is to be saved and stopped. Its memory counts until its ``finish``."""

    job_id: str
    reason: str


class Granted(msgspec.Struct, frozen=True):
    """It is a job's turn, until its next ``boundary``."""

    job_id: str
    lane: int


Change: TypeAlias = (
    Opened | Resized | Closed | Entered | Waits | Refused | Moved | Parked | Unparked | Evicted | Granted
)
