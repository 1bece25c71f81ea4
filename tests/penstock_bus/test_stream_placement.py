"""Streams on servers of which the leader does not know yet what room they have."""

from __future__ import annotations

from typing import Any

import pytest

from penstock_bus.nats.link import ApiError, NotSettled, ServerRefusal
from penstock_bus.nats.streams import StreamLimits, configs, ensure

MISSING = ServerRefusal("STREAM.INFO", ApiError(code=404, err_code=10059, description="stream not found"))


class LinkToStrangers:
    """Servers that have nothing, and refuse to place a stream so many times."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.made: list[str] = []

    async def api(self, verb: str, config: dict[str, Any] | None = None) -> None:
        if config is None:
            raise MISSING
        self.refusals -= 1
        if self.refusals >= 0:
            raise NotSettled("no suitable peers for placement")
        self.made.append(verb)


async def test_streams_are_made_once_the_servers_have_told_of_their_room() -> None:
    link, limits = LinkToStrangers(3), StreamLimits(replicas=3)
    await ensure(link, limits)  # type: ignore[arg-type]
    assert link.made == [f"STREAM.CREATE.{name}" for name in configs(limits)]


async def test_servers_that_never_have_room_are_told_of() -> None:
    with pytest.raises(NotSettled, match="no suitable peers"):
        await ensure(LinkToStrangers(100), StreamLimits(replicas=3))  # type: ignore[arg-type]
