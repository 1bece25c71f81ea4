"""What the server's error codes mean to those who use the port."""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_bus.port import BusError, StorageFull, TooLarge, Unauthorized, Unavailable

WRONG_LAST_SEQUENCE: Final = frozenset({10071, 10164})
NOT_YET: Final = frozenset({10158, 10163})  # a cluster still stores the same id, or the subject's last message
NOT_FOUND: Final = frozenset({10014, 10037, 10059})  # consumer, message, stream

_FULL: Final = frozenset({10002, 10023, 10028, 10047, 10077})
_TOO_LARGE: Final = frozenset({10054, 10097})
_UNAVAILABLE: Final = 500  # HTTP-like; above it the server itself is in trouble


class ApiError(msgspec.Struct, frozen=True):
    """The server's refusal."""

    code: int = 0
    err_code: int = 0
    description: str = ""


class Refused(BusError):
    """The server refused for a reason that its caller here knows how to handle."""

    def __init__(self, what: str, error: ApiError) -> None:
        """Keep the server's code."""
        super().__init__(f"{what}: the server refused: {error.description} (code {error.err_code})")
        self.err_code = error.err_code


class Lost(Unavailable):
    """The connection broke before the answer; nobody knows whether the call was carried out."""


def fault(what: str, error: ApiError) -> BusError:
    """Return the exception for a refusal; ``what`` says what was tried."""
    if error.err_code in _FULL:
        return StorageFull(
            f"{what}: the server has no room left ({error.description}); nothing was stored, and nothing stored before "
            "is lost. `penstock purge` says what can go; or free space under its store_dir or raise its limit "
            "(`--max-store`), then try again"
        )
    if error.err_code in _TOO_LARGE:
        return TooLarge(f"{what}: {error.description}; send less, or raise the server's max_payload")
    if error.code >= _UNAVAILABLE:
        return Unavailable(f"{what}: the server cannot do it now ({error.description}); try again")
    return Refused(what, error)


def denied(subject: str, what: str = "publish to") -> Unauthorized:
    """Return the exception for a subject that the user may not use."""
    return Unauthorized(f"the server does not let this user {what} {subject}; log in as a user with that permission")
