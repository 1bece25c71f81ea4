"""
The state of a part on its way to another aggregator.

:data:`AT_A_TIME` threads send one part after the other, each over a connection of its own.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

from penstock.aggregation.aggregator_connection import dial, read_answer
from penstock.aggregation.frames import PAUSED, PartFrame, PartFrameError, PartRequest, encoded
from penstock.leased_connection import send
from penstock_aggregator.hosted_run import HostedPart
from penstock_log.aggregation_messages import CopyFailed, SendPart

AT_A_TIME: Final = 4
COPY_S: Final = 10.0
"""So long the other aggregator may stand still."""


class PartCopier:
    """
    Sends parts to other aggregators.

    Parameters
    ----------
    failed : callable
        Told of a copy that did not become whole.
    ticking : callable
        Seconds that never jump.
    """

    def __init__(self, failed: Callable[[CopyFailed], object], ticking: Callable[[], float]) -> None:
        self._failed, self._ticking = failed, ticking
        self._waiting: queue.SimpleQueue[tuple[HostedPart, SendPart]] = queue.SimpleQueue()
        for _ in range(AT_A_TIME):
            threading.Thread(target=self._send_parts, name="aggregator-copy", daemon=True).start()

    def send_part(self, hosted: HostedPart, order: SendPart) -> None:
        """Have a part that has moved sent, behind those that wait."""
        self._waiting.put((hosted, order))

    def _send_parts(self) -> None:
        while True:
            hosted, order = self._waiting.get()
            try:
                self._send_now(hosted, order)
            except (OSError, PartFrameError) as error:
                self.fail(order, str(error) or type(error).__name__)
            else:
                with hosted.lock:
                    hosted.part.forget_vectors()
                    hosted.close()
            del hosted, order

    def fail(self, order: SendPart, reason: str) -> None:
        """Say that a part could not be sent."""
        said = f"to {order.to.aggregator}: {reason}"
        self._failed(
            CopyFailed(
                job_id=order.job_id, epoch=order.epoch, part=order.part, generation=order.generation, reason=said
            )
        )

    def _send_now(self, hosted: HostedPart, order: SendPart) -> None:
        part = hosted.part
        vectors = part.copy_vectors
        with dial(order.to) as connection:
            connection.settimeout(COPY_S)
            length = PAUSED.size + len(vectors) * part.bytes
            frame = PartFrame(
                PartRequest.COPY,
                request=1,
                part=order.part,
                generation=order.generation,
                step=part.completed,
                safe_step=part.safe_step,
                length=length,
                dtype=part.dtype.itemsize,
            )
            paused_us = int(1e6 * max(0.0, self._ticking() - hosted.moved_s))
            send(connection, encoded(frame), PAUSED.pack(paused_us))
            for vector in vectors:
                connection.sendall(vector.data.cast("B"))
            read_answer(connection, PartRequest.COPY)
