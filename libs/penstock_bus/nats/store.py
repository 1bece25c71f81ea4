"""How full the server's store is and of what, and making room: for administrators."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock_bus.nats.link import Link
from penstock_events import subjects

_ALL: Final = ">"


class StreamUse(msgspec.Struct, frozen=True, kw_only=True):
    """
    What one stream holds.

    Attributes
    ----------
    max_bytes : int
        Its limit; 0 for none.
    subjects : dict of str to int
        Messages of each subject, where they were asked for.
    """

    name: str
    messages: int
    bytes: int
    max_bytes: int
    subjects: dict[str, int] = {}


async def used_bytes(link: Link) -> int:
    """Return how much all streams hold, in bytes as the server counts them against its limit."""
    return int((await link.api("INFO"))["storage"])


async def streams(link: Link) -> list[StreamUse]:
    """Return what each stream holds, the fullest first."""
    names = (await link.api("STREAM.NAMES"))["streams"] or []
    found = [_use(name, await link.api(f"STREAM.INFO.{name}")) for name in names]
    return sorted(found, key=lambda one: one.bytes, reverse=True)


async def stream(link: Link, name: str, pattern: str = _ALL) -> StreamUse:
    """Return what one stream holds, by subject: the first hundred thousand that fit the pattern."""
    return _use(name, await link.api(f"STREAM.INFO.{name}", {"subjects_filter": pattern}))


async def purge(link: Link, name: str, pattern: str = "") -> int:
    """
    Delete what a stream holds, or what of it fits a pattern of subjects; return how many messages that were.

    Raises
    ------
    ValueError
        For the log: it is the truth, and nothing brings it back.
    """
    if name == subjects.EVT:
        raise ValueError(f"{name} is the log itself, which nothing brings back; raise the store's limit instead")
    answer = await link.api(f"STREAM.PURGE.{name}", {"filter": pattern} if pattern else {})
    return int(answer["purged"])


def _use(name: str, info: dict[str, Any]) -> StreamUse:
    state = info["state"]
    return StreamUse(
        name=name,
        messages=state["messages"],
        bytes=state["bytes"],
        max_bytes=max(info["config"]["max_bytes"], 0),
        subjects=state.get("subjects") or {},
    )
