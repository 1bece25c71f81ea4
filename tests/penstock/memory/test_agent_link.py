"""The conversation with the node's agent."""

from __future__ import annotations

import os
import queue

import pytest
from memory_stubs import AgentStub, DonorStub, donor_and_agent

from penstock.memory.agent_link import AgentLink, agent_socket
from penstock_log.memory_messages import BorrowSlab, ClientHello, ReturnSlab, SlabUse


class Owner:
    """Keeps what the link tells."""

    def __init__(self) -> None:
        self.told = queue.Queue()
        self.use = {}

    def agent_welcomed(self, slab_bytes):
        self.told.put(("welcomed", slab_bytes))

    def agent_gone(self):
        self.told.put(("gone",))

    def slab_evicted(self, slab, reason):
        self.told.put(("evicted", slab, reason))

    def second_over(self):
        return self.use


@pytest.fixture
def agent(tmp_path):
    with donor_and_agent(tmp_path) as (_, stub):
        yield stub


@pytest.fixture
def owner():
    return Owner()


@pytest.fixture
def link(agent, owner):
    link = AgentLink(str(agent.path), "mine", owner, second_s=0.02)
    assert owner.told.get(timeout=30) == ("welcomed", 1 << 20)
    while not link.connected:
        agent.wait_for(ClientHello)
    yield link
    link.close()


def borrowed(link, slab):
    came = queue.Queue()
    assert link.borrow(slab, lambda address, reason: came.put((address, reason)))
    return came


def test_the_client_says_who_it_is(link, agent):
    [hello] = agent.wait_for(ClientHello)
    assert (hello.name, hello.pid) == ("mine", os.getpid())


def test_a_slab_is_borrowed_evicted_and_given_back(link, agent, owner):
    address, _ = borrowed(link, 7).get(timeout=30)
    assert address == agent.lent[7]
    agent.evict(7)
    assert owner.told.get(timeout=30) == ("evicted", 7, "its donor needs it")
    assert agent.wait_for(ReturnSlab) == [ReturnSlab(slab=7)]


def test_a_refusal_comes_with_its_reason(link, agent):
    agent.lending = False
    assert borrowed(link, 1).get(timeout=30) == (None, "nobody has memory to lend")


def test_how_slabs_are_used_is_said_again_and_again(link, agent, owner):
    owner.use = {3: 21.5}
    assert agent.wait_for(SlabUse, 2)[0] == SlabUse(activity={3: 21.5})


def test_an_agent_that_went_away_has_nothing_lent_and_is_found_again(link, agent, owner):
    agent.die()
    assert owner.told.get(timeout=30) == ("gone",)
    assert not link.borrow(1, print)
    agent.start()
    assert owner.told.get(timeout=30) == ("welcomed", 1 << 20)


def test_a_refused_client_is_told_once(tmp_path, caplog):
    donor = DonorStub(tmp_path, slab_bytes=1 << 20)
    agent = AgentStub(tmp_path / "agent.sock", donor)
    agent.refusal = "no memory for this account"
    link = AgentLink(str(agent.path), "", Owner(), second_s=0.01)
    agent.wait_for(ClientHello, 4)
    link.close()
    agent.die()
    donor.close()
    assert sum("no memory for this account" in line for line in caplog.messages) == 1


def test_the_socket_is_the_given_one_or_the_environments(monkeypatch):
    monkeypatch.setenv("PENSTOCK_MEMORY_SOCKET", "/run/agent.sock")
    assert (agent_socket(None), agent_socket("/other"), agent_socket("")) == ("/run/agent.sock", "/other", "")
    monkeypatch.delenv("PENSTOCK_MEMORY_SOCKET")
    assert agent_socket(None) == ""


def test_a_borrowed_slab_is_asked_for_once(link, agent):
    agent.lending = False
    came = borrowed(link, 1)
    came.get(timeout=30)
    assert len(agent.wait_for(BorrowSlab)) == 1
