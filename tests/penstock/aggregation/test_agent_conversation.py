"""What a job's process says to its node's aggregation agent, and what it makes of the answers."""

from __future__ import annotations

import logging
import queue
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from penstock.aggregation import agent_conversation
from penstock.aggregation.agent_conversation import AgentConversation
from penstock_log.aggregation_messages import (
    VERSION,
    AggregationDenied,
    AggregationFromClient,
    AggregationPending,
    AggregationToClient,
    AskAggregation,
    LeaveAggregation,
    LostAggregator,
    PartAt,
    PartsAt,
    VectorLayout,
)

WAIT_S = 20.0
LAYOUT = VectorLayout(dtype="f4", parts=(4,))
ASK = AskAggregation(version=VERSION, pid=1, job_id="j1", epoch=1, rank=0, world_size=2, token="0" * 64, layout=LAYOUT)
PARTS = PartsAt(generation=1, parts=(PartAt(part=0, aggregator="n1/0", generation=1),), aggregators=())


class ListeningAgent:
    """An agent's end of its socket."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.settimeout(WAIT_S)
        self._listener.bind(str(path))
        self._listener.listen()

    def accept(self) -> None:
        """Wait for the process."""
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(WAIT_S)
        self._lines = self._connection.makefile("rb")

    def heard(self) -> AggregationFromClient:
        """Return the next line of the process."""
        message: AggregationFromClient = msgspec.json.decode(self._lines.readline(), type=AggregationFromClient)
        return message

    def say(self, message: AggregationToClient) -> None:
        self._connection.sendall(msgspec.json.encode(message) + b"\n")

    def hang_up(self) -> None:
        self._lines.close()
        self._connection.close()

    def close(self) -> None:
        self._listener.close()


class Told:
    """What the process was told."""

    def __init__(self, path: Path) -> None:
        self.parts: queue.Queue[PartsAt] = queue.Queue()
        self.denied: queue.Queue[str] = queue.Queue()
        self.conversation = AgentConversation(str(path), ASK, self.parts.put, self.denied.put)


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:  # a short path, as sockets need it
        yield Path(folder) / "agent.sock"


@pytest.fixture
def agent(path: Path) -> Iterator[ListeningAgent]:
    it = ListeningAgent(path)
    yield it
    it.close()


def test_a_process_asks_anew_when_its_agent_has_started_again(agent: ListeningAgent, path: Path) -> None:
    told = Told(path)
    for _ in range(2):
        agent.accept()
        assert agent.heard() == ASK
        agent.say(PARTS)
        assert told.parts.get(timeout=WAIT_S) == PARTS
        assert told.conversation.pending == ""
        agent.hang_up()
    told.conversation.close()


def test_a_process_says_whom_it_cannot_reach_and_when_it_leaves(agent: ListeningAgent, path: Path) -> None:
    told = Told(path)
    agent.accept()
    assert agent.heard() == ASK
    agent.say(PARTS)
    told.parts.get(timeout=WAIT_S)
    lost = LostAggregator(aggregator="n1/0", generation=1, reason="the aggregator hung up")
    told.conversation.report_lost(lost)
    assert agent.heard() == lost
    told.conversation.close()
    assert agent.heard() == LeaveAggregation()


def test_a_process_that_is_denied_hears_why_and_asks_no_more(agent: ListeningAgent, path: Path) -> None:
    told = Told(path)
    agent.accept()
    agent.heard()
    agent.say(AggregationDenied(reason="token: it is another's"))
    assert told.denied.get(timeout=WAIT_S) == "token: it is another's"
    agent.hang_up()
    told.conversation._thread.join(WAIT_S)
    assert not told.conversation._thread.is_alive()


@pytest.mark.parametrize("gets_parts", [False, True])
def test_a_process_complains_only_of_aggregators_that_stay_away(
    agent: ListeningAgent,
    path: Path,
    gets_parts: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(agent_conversation, "PATIENCE_S", 3600.0 if gets_parts else 0.2)
    caplog.set_level(logging.WARNING, logger="penstock.aggregation")
    told = Told(path)
    agent.accept()
    agent.heard()
    agent.say(AggregationPending(reason="the run waits for aggregators"))
    if gets_parts:
        agent.say(PARTS)
        told.parts.get(timeout=WAIT_S)
    told.conversation._impatience.join(WAIT_S)  # it has complained, or was cancelled
    assert not told.conversation._impatience.is_alive()
    assert [record.getMessage().startswith("aggregation_waits") for record in caplog.records] == (
        [] if gets_parts else [True]
    )
    told.conversation.close()
