"""How replicas of one service share its entities without talking: rendezvous hashing over those that are alive."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def owner(key: str, replicas: Iterable[str]) -> str:
    """
    Return the replica that a key belongs to: the one whose hash with the key is highest.

    When a replica goes, only its own keys move; when one comes, it takes an equal part from each of the others.
    Replicas that see different sets for a moment may both feel responsible: the log's expected sequences settle it.

    Raises
    ------
    ValueError
        If there is no replica.

    Examples
    --------
    >>> owner("k1", ["a", "b"]) == owner("k1", ["b", "a"])
    True
    """
    return max(replicas, key=lambda replica: (_weight(key, replica), replica))


def mine(key: str, replicas: Iterable[str], me: str) -> bool:
    """
    Say whether a key belongs to the replica ``me``, which is alive whether or not it is listed.

    Examples
    --------
    >>> mine("k1", [], "a")
    True
    """
    return owner(key, {*replicas, me}) == me


def _weight(key: str, replica: str) -> bytes:
    return hashlib.blake2b(f"{replica}|{key}".encode(), digest_size=8).digest()
