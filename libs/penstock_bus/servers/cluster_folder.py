"""The folder that the servers of a cluster share, by which they find out who is there and get the same keys."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

from penstock_bus.identity import keyring
from penstock_bus.identity.logins import write_private

FIRST: Final = 1
"""The number of the server that makes the keys, and does all that has to be done once."""
KEYS: Final = (keyring.FILE,)
"""What all servers have to know alike, of the first one's folder of keys."""
_ROUTES: Final = "routes.key"
_OPEN: Final = "open"


class ClusterFolder:
    """
    A folder that all servers of a cluster see, and nobody else.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder

    def announce(self, number: int) -> None:
        """Say that a server is there."""
        write_private(self._said(number), b"")

    def is_announced(self, number: int) -> bool:
        """Return whether a server has said that it is there; the first has put the keys here before."""
        return self._said(number).exists()

    def give_keys(self, keys: Path) -> None:
        """Put the first server's keys here for the others, and a secret by which they know each other."""
        if not (self._folder / _ROUTES).exists():
            write_private(self._folder / _ROUTES, secrets.token_urlsafe(32).encode())
        for name in KEYS:
            write_private(self._folder / name, (keys / name).read_bytes())

    def take_keys(self, keys: Path) -> None:
        """Put the keys into another server's folder."""
        keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in KEYS:
            write_private(keys / name, (self._folder / name).read_bytes())

    def secret(self) -> str:
        """Return the secret by which the servers know each other."""
        return (self._folder / _ROUTES).read_text(encoding="utf-8")

    @property
    def revoked_file(self) -> Path:
        """Where all servers find the nodes' logins that count no more."""
        return self._folder / keyring.REVOKED

    def open_log(self, url: str) -> None:
        """Say that the streams are there, and where people find the servers."""
        write_private(self._folder / _OPEN, url.encode())

    def opened_at(self) -> str:
        """Return where people find the servers; empty before the streams are there."""
        try:
            return (self._folder / _OPEN).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def _said(self, number: int) -> Path:
        return self._folder / f"member-{number}"
