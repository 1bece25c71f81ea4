"""
Copies of whole streams: out of a running server, and into an empty one.

:func:`copy_out` has the server send a stream as it is at one moment, with its sequences, while others go on writing to
it. :func:`copy_in` has a server make the same stream again. What is sent is a compressed archive of the server's own;
it is passed on piece by piece and never held whole.

The server sends no more than a window of bytes that are not acknowledged, so that whoever writes slowly is not flooded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final

import msgspec
import nats.errors

from penstock_bus.nats.link import PAUSE_S, ApiError, ConnectionLost, Link, fault, unsubscribe
from penstock_bus.port import BusError, NoResponders, Unavailable

_PIECE_BYTES: Final = 128 * 1024
_WINDOW_BYTES: Final = 4 << 20
_SILENCE_S: Final = 30.0
_HEARD_S: Final = 5.0


class StreamCopy(msgspec.Struct, frozen=True, kw_only=True):
    """
    A stream as the server describes it when it begins to send it.

    Attributes
    ----------
    config, state
        As the server's API has them; ``state`` says how many messages there are, and the first and last sequence.
    """

    config: dict[str, Any]
    state: dict[str, Any]

    @property
    def name(self) -> str:
        """The stream's name."""
        return str(self.config["name"])


class CopyInterrupted(BusError):
    """A stream was not sent, or not taken, to its end."""


async def copy_out(link: Link, name: str) -> AsyncGenerator[StreamCopy | bytes, None]:
    """
    Yield a stream's description, and then the pieces of its copy.

    Its consumers are left out: they are made again by those who read.

    Raises
    ------
    CopyInterrupted
        If the server ends early or falls silent; there is nothing to go on from, so it has to be begun anew.
    BusError
        If the server does not begin.
    """
    inbox = link.client.new_inbox()  # of its own: the server waits for somebody who listens to exactly this subject
    pieces = await link.client.subscribe(inbox)
    try:
        request = {
            "deliver_subject": inbox,
            "no_consumers": True,
            "jsck": True,  # the server looks at the checksum of every message first
            "chunk_size": min(_PIECE_BYTES, link.max_body_bytes),
            "window_size": _WINDOW_BYTES,
        }
        yield await link.api(f"STREAM.SNAPSHOT.{name}", request, answer=StreamCopy)
        while True:
            try:
                piece = await pieces.next_msg(_SILENCE_S)
                if not piece.data:
                    _check_end(name, piece.headers or {})
                    return
                yield piece.data
                if piece.reply:
                    await link.publish(piece.reply, b"")
            except (nats.errors.Error, ConnectionLost) as error:
                raise CopyInterrupted(f"the copy of {name} broke off: {error}; begin anew") from error
    finally:
        await unsubscribe(pieces)


def _check_end(name: str, headers: dict[str, str]) -> None:
    status = headers.get("Status", "204")
    if not status.startswith("2"):
        raise CopyInterrupted(f"the server broke off the copy of {name}: {status} {headers.get('Description', '')}")


async def copy_in(link: Link, copy: StreamCopy, pieces: AsyncIterator[bytes], config: dict[str, Any]) -> None:
    """
    Make a stream from its copy; its messages get the sequences that they had.

    Parameters
    ----------
    config : dict
        What differs from the configuration that it had.

    Raises
    ------
    CopyInterrupted
        If the stream is then not the one that was copied.
    BusError
        If the server refuses, such as for a stream that is there already.
    """
    name, wanted = copy.name, copy.config | config
    found = await link.api(f"STREAM.RESTORE.{name}", {"config": wanted, "state": copy.state})
    to, piece_bytes = found["deliver_subject"], link.max_body_bytes
    async for piece in pieces:
        for at in range(0, len(piece), piece_bytes):
            _check(name, (await _sent(link, to, piece[at : at + piece_bytes])))
    ended = await _sent(link, to, b"")
    _check(name, ended)
    state = msgspec.json.decode(ended)["state"]
    is_whole = not wanted.get("max_age")  # or the oldest may have expired meanwhile
    for what in ("messages", "last_seq") if is_whole else ("last_seq",):
        if state[what] != copy.state[what]:
            raise CopyInterrupted(
                f"{name} came back with {what} {state[what]} where its copy says {copy.state[what]}; "
                "nothing else was touched: remove what was made, and try again"
            )


async def _sent(link: Link, to: str, piece: bytes) -> bytes:
    """Send a piece; on several servers it takes a moment until all know that one of them listens for it."""
    clock = asyncio.get_running_loop().time
    end_s = clock() + _HEARD_S
    while True:
        try:
            return bytes((await link.ask(to, piece, timeout_s=_SILENCE_S)).data)
        except NoResponders as error:  # which nobody has got
            if clock() >= end_s:
                raise CopyInterrupted(f"the server did not take all of the copy: {error}; begin anew") from error
        except (Unavailable, asyncio.TimeoutError) as error:
            raise CopyInterrupted(f"the server did not take all of the copy: {error}; begin anew") from error
        await asyncio.sleep(PAUSE_S)


def _check(name: str, answer: bytes) -> None:
    """Raise what the server says of a piece, if that is an error; it is silent about those that it takes."""
    if answer and (error := msgspec.json.decode(answer).get("error")):
        raise fault(f"copy of {name}", msgspec.convert(error, ApiError))
