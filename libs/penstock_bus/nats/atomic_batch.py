"""
Atomic batches: messages of a stream that are stored together, or not at all.

The server keeps a batch aside until its last message has come; it syncs it, copies it into the stream, and syncs that
once. A writer who dies before the last message leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock_bus.nats.link import Ack, ApiError, Link, decode_ack

BatchMessage = tuple[str, bytes, dict[str, str]]
"""Subject, body and headers."""
_NO_BATCHES: Final = ApiError(code=400, description="it stores each message by itself; nats-server 2.12 takes batches")


async def send_batch(link: Link, batch_id: str, messages: Sequence[BatchMessage]) -> Ack:
    """
    Send a batch under an id of its own, and return the server's answer to it.

    Raises
    ------
    Unavailable
        If the connection breaks or no answer comes: whether the batch is stored is then unknown.
    """
    *first, (subject, body, headers) = messages
    for number, (another, its_body, its_headers) in enumerate(first, 1):
        numbered = its_headers | _numbers(batch_id, number)
        if number > 1:
            await link.publish(another, its_body, numbered)
            continue
        opened = await link.ask(another, its_body, numbered)
        if opened.data:  # the server acknowledges all of the batch at its end
            refused = decode_ack(opened).error or _NO_BATCHES
            return Ack(error=refused)
    numbered = headers | _numbers(batch_id, len(messages)) | {"Nats-Batch-Commit": "1"}
    return decode_ack(await link.ask(subject, body, numbered))


def _numbers(batch_id: str, number: int) -> dict[str, str]:
    return {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(number)}
