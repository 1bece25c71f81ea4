"""What can go wrong on the bus: :class:`BusError` and its children, by who must act. They cost nothing to import."""

from __future__ import annotations


class BusError(Exception):
    """Root of what can go wrong on the bus."""


class Conflict(BusError):
    """The subject has moved on: read it and decide again."""

    def __init__(self, subject: str, expected: int) -> None:
        """Say which subject, and which sequence the writer had expected."""
        super().__init__(f"{subject} is no longer at sequence {expected}; read it again and decide anew")
        self.subject = subject
        self.expected = expected


class BatchRefused(BusError):
    """Commits that were to be appended as one were not; append them one by one, which says what is wrong with which."""


class TrimDenied(BusError):
    """The log is one from which nothing can be removed."""

    def __init__(self) -> None:
        """Say what makes it another one."""
        super().__init__(
            "nothing can be removed from this log, which an earlier version has made so; `penstock backup` and "
            "`penstock restore` into a new folder make it one of today"
        )


class LogFromFuture(BusError):
    """The log is of a later version, whose facts this one cannot read."""

    def __init__(self, found: str, known: int) -> None:
        """Say which format it has, and which ones are known here."""
        super().__init__(
            f"the log is of format {found}, which a later version of Penstock has written; this one reads formats up "
            f"to {known}. Start the version that last ran on it, or a later one; nothing was changed"
        )


class LogWentBack(BusError):
    """The log ends before what was read of it: what was folded is not what it holds; start anew."""

    def __init__(self, read_seq: int, last_seq: int) -> None:
        """Say how far it was read, and where it ends."""
        super().__init__(
            f"the log ends at sequence {last_seq} and was read up to {read_seq}: it was restored from a backup, or its "
            "disk has lost what was written last; start anew, from what it holds"
        )
        self.read_seq, self.last_seq = read_seq, last_seq


class Unavailable(BusError):
    """The server did not answer or cannot be reached; the call may be tried again."""


class StorageFull(Unavailable):
    """The server has no room left; nothing was stored, and nothing stored before is lost."""


class Timeout(Unavailable):
    """No answer came in time."""


class Unanswered(Timeout):
    """A command's answer never came: whether it was carried out is unknown. The message says how to find out."""


class NoResponders(Unavailable):
    """Nobody serves that subject: is the service running?"""


class Unauthorized(BusError):
    """The server refused the credentials, or they may not use that subject."""


class TooLarge(BusError):
    """The body is over the server's limit; send less, or raise ``max_payload``."""


class ServiceError(BusError):
    """A service answered with an error."""

    def __init__(self, code: int, message: str, body: bytes = b"") -> None:
        """Keep the code for the caller; the message says what to do."""
        super().__init__(message)
        self.code = code
        self.body = body
