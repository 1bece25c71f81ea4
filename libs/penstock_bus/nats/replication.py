"""
On which servers the streams are kept.

:class:`NatsReplicationClient` says of each stream who leads it, who follows, and who is behind. :func:`move_streams`
brings the streams of a server that was alone to several.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from penstock_bus.compat import aclosing, timeout
from penstock_bus.nats.link import NOT_FOUND, Link, NatsClient, ServerRefusal
from penstock_bus.nats.stream_backup import StreamCopy, copy_in, copy_out
from penstock_bus.nats.streams import BUCKET, compression_of
from penstock_bus.port import BusError, ReplicationPort
from penstock_log import subjects
from penstock_log.views import StreamPeerView, StreamView

_STREAMS: Final = (*subjects.STREAM_SUBJECTS, BUCKET)
_NS: Final = 1e-9
LOOK_S: Final = 2.0
"""So long a leader may take to say how its stream is; a stream without one does not answer at all."""


class _Copy(msgspec.Struct, frozen=True):
    """The server's word about one copy of a stream."""

    name: str
    current: bool = False
    offline: bool = False
    active: int = 0
    lag: int = 0


class _Cluster(msgspec.Struct, frozen=True):
    """The server's word about who has a stream."""

    leader: str = ""
    replicas: list[_Copy] = []


class _Size(msgspec.Struct, frozen=True):
    """The server's word about what a stream holds."""

    messages: int = 0
    bytes: int = 0


class _Info(msgspec.Struct, frozen=True):
    """The server's answer about a stream, as far as it is looked at."""

    config: dict[str, Any]
    state: _Size = _Size()
    cluster: _Cluster = _Cluster()


class NatsReplicationClient(NatsClient, ReplicationPort):
    """On which servers the streams are kept."""

    async def replication(self) -> list[StreamView]:
        return list(await asyncio.gather(*(_replication(self.link, name) for name in _STREAMS)))


async def _replication(link: Link, name: str) -> StreamView:
    try:
        async with timeout(LOOK_S):
            info = await link.api(f"STREAM.INFO.{name}", answer=_Info)
    except (TimeoutError, asyncio.TimeoutError):
        return StreamView(name=name, error=f"it did not answer within {LOOK_S:g} s")
    except BusError as error:
        return StreamView(name=name, error=str(error))
    copies = [
        StreamPeerView(
            server=one.name, current=one.current, offline=one.offline, lag=one.lag, heard_ago_s=one.active * _NS
        )
        for one in info.cluster.replicas
    ]
    return StreamView(
        name=name,
        replicas=info.config.get("num_replicas", 1),
        leader=info.cluster.leader,
        copies=tuple(copies),
        messages=info.state.messages,
        bytes=info.state.bytes,
        max_bytes=max(0, info.config.get("max_bytes", 0)),
    )


class StreamEnd(msgspec.Struct, frozen=True):
    """How many messages a stream holds, and the sequence of its last."""

    messages: int
    last_seq: int


class _Held(msgspec.Struct, frozen=True):
    """The server's answer about a stream, as far as its messages go."""

    state: StreamEnd


async def stream_end(link: Link, name: str) -> StreamEnd | None:
    """Return what a stream holds; None where there is none of that name."""
    try:
        return (await link.api(f"STREAM.INFO.{name}", answer=_Held)).state
    except ServerRefusal as error:
        if error.err_code not in NOT_FOUND:
            raise
        return None


async def move_streams(old: Link, new: Link, replicas: int) -> dict[str, StreamEnd]:
    """
    Copy all streams of one server to others that have none, with their sequences; return what each holds there.

    Streams that are there already, with as much or more, are left alone: it may be done again after it was broken off.
    Leases are left out, since they last for seconds.

    Raises
    ------
    CopyInterrupted
        If a stream did not come whole.
    """
    names = [name for name in (await old.api("STREAM.NAMES"))["streams"] or [] if name != BUCKET]
    return {
        name: await _moved(old, new, name, replicas) for name in sorted(names, key=lambda name: name != subjects.EVT)
    }


async def _moved(old: Link, new: Link, name: str, replicas: int) -> StreamEnd:
    was, now = await stream_end(old, name), await stream_end(new, name)
    if was is not None and now is not None:
        if now.last_seq >= was.last_seq:
            return now
        await new.api(f"STREAM.DELETE.{name}")
    async with aclosing(copy_out(old, name)) as pieces:
        async for copy in pieces:
            if isinstance(copy, StreamCopy):  # which comes first
                changed = {"num_replicas": replicas, "placement": None, "compression": compression_of(replicas)}
                await copy_in(new, copy, _bodies(pieces), changed)
    return await stream_end(new, name) or StreamEnd(0, 0)


async def _bodies(pieces: AsyncGenerator[StreamCopy | bytes, None]) -> AsyncGenerator[bytes, None]:
    async for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
