"""A stream that ends before what was read of it: lost, or not yet shown by a server that has just been elected."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock_bus import LogWentBack
from penstock_bus.nats import consumer
from penstock_bus.nats.consumer import StreamInfo, check_end


class LinkToServers:
    """Servers that say at each look what the stream's last sequence is."""

    def __init__(self, *ends: int, replicas: int) -> None:
        self.ends, self.replicas, self.looks = ends, replicas, 0

    async def api(self, what: str, *, answer: Any) -> Any:
        assert (what, answer) == ("STREAM.INFO.EVT", StreamInfo)
        end = self.ends[min(self.looks, len(self.ends) - 1)]
        self.looks += 1
        return msgspec.convert({"state": {"last_seq": end}, "config": {"num_replicas": self.replicas}}, StreamInfo)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "_APPLY_LOOK_S", 0.0)


async def test_a_server_that_has_just_been_elected_may_show_later_what_was_confirmed() -> None:
    link = LinkToServers(32, 32, 33, replicas=3)
    await check_end(link, "EVT", 33)
    assert link.looks == 3


@pytest.mark.parametrize("replicas", [1, 3])
async def test_what_a_stream_does_not_show_at_all_is_lost(replicas: int) -> None:
    link = LinkToServers(32, replicas=replicas)
    with pytest.raises(LogWentBack, match="ends at sequence 32 and was read up to 33"):
        await check_end(link, "EVT", 33)
    assert (link.looks == 1) == (replicas == 1)
