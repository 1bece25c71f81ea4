"""Random passwords of the server's users, kept in the data folder for its owner's eyes only."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

_OWNER_ONLY: Final = 0o600


def ensure(path: Path, users: Iterable[str]) -> dict[str, str]:
    """Return each user's password, making up and keeping those that are missing."""
    known = read(path)
    passwords = {user: known.get(user) or secrets.token_urlsafe(24) for user in users}
    if passwords != known:
        write_private(path, msgspec.json.format(msgspec.json.encode(passwords)))
    return passwords


def read(path: Path) -> dict[str, str]:
    """
    Return the passwords in a file; none where there is no file.

    Raises
    ------
    PermissionError
        If the file is somebody else's.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except FileNotFoundError:
        return {}


def write_private(path: Path, body: bytes) -> None:
    """Replace a file with one that only its owner may read; readers see the old or the new one."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OWNER_ONLY)
    with os.fdopen(descriptor, "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
