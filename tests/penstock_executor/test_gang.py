"""Where gangs meet: at a port of their own on one node, at the same one on several."""

from __future__ import annotations

import socket
from itertools import count

import pytest
from executor_cases import World

from penstock_bus import addresses
from penstock_bus.addresses import reachable_address
from penstock_bus.settings import SettingsError
from penstock_cluster.nodes import Cluster
from penstock_executor.gang import Rendezvous, derived_port
from penstock_executor.launchers.environment import GangMember
from penstock_log import NodeJoined

PAIR = [GangMember(0, 0, "n1", (0,)), GangMember(1, 1, "n1", (1,))]
APART = [GangMember(0, 0, "n1", (0,)), GangMember(1, 0, "n2", (0,))]


def port_of(meetings: Rendezvous, job_id: str, epoch: int = 1) -> int:
    return int(meetings.arrange((job_id, epoch), PAIR, Cluster())["MASTER_PORT"])


def test_two_gangs_of_a_node_never_meet_at_the_same_port() -> None:
    meetings, alike = Rendezvous(), same_port()
    ports = [port_of(meetings, job_id) for job_id in alike]
    assert len(set(ports)) == len(alike)
    assert derived_port(alike[0], 1) == derived_port(alike[1], 1)


def same_port() -> list[str]:
    """Return two jobs from which the same port is derived."""
    first: dict[int, str] = {}
    for job_id in map("job-{}".format, count()):
        if (other := first.setdefault(derived_port(job_id, 1), job_id)) != job_id:
            return [other, job_id]
    raise AssertionError("there are finitely many ports")


def test_a_port_on_which_somebody_listens_is_left_to_them() -> None:
    meetings = Rendezvous()
    taken = port_of(meetings, "j1")
    meetings.release(("j1", 1))
    with socket.create_server(("127.0.0.1", taken)):
        assert port_of(meetings, "j1") != taken


def test_no_port_is_one_that_the_kernel_gives_to_connections() -> None:
    meetings = Rendezvous()
    assert all(20_000 <= port_of(meetings, f"job-{i}") < 32_768 for i in range(50))


def test_every_node_of_a_gang_works_out_the_same_port_and_rank_0s_address() -> None:
    cluster = Cluster()
    cluster.apply(NodeJoined(node_id="n1", devices=(), labels={"address": "10.0.0.7"}, at_s=1.0))
    found = [Rendezvous().arrange(("j1", 2), APART, cluster) for _ in range(2)]
    assert found[0] == found[1]
    assert (found[0]["MASTER_ADDR"], found[0]["MASTER_PORT"]) == ("10.0.0.7", str(derived_port("j1", 2)))
    assert derived_port("j1", 1) != derived_port("j1", 2)


def test_a_gang_of_one_node_meets_at_home() -> None:
    found = Rendezvous().arrange(("j1", 1), PAIR, Cluster())
    assert (found["MASTER_ADDR"], found["WORLD_SIZE"], found["PENSTOCK_WORLD_SIZE"]) == ("127.0.0.1", "2", "2")


def test_the_address_is_that_of_the_interface_which_leads_to_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    network = {"bus.lab": ["10.1.0.4"], "192.0.2.1": ["172.16.0.9"]}
    monkeypatch.setattr(addresses, "_sources", lambda host: iter(network.get(host, ())))
    assert reachable_address("nats://bus.lab:4222") == "10.1.0.4"
    assert reachable_address("nats://gone.lab:4222,nats://me@bus.lab:4223") == "10.1.0.4"
    assert reachable_address("bus.lab:4222") == "10.1.0.4"


@pytest.mark.parametrize("url", ["nats://localhost:4222", "nats://127.0.0.1:4222", "nats://[::1]:4222", ""])
def test_beside_the_bus_the_address_is_that_of_the_default_route(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = {"localhost": ["127.0.0.1", "::1"], "127.0.0.1": ["127.0.0.1"], "::1": ["::1"]}
    interfaces: list[str] = []
    monkeypatch.setattr(addresses, "_sources", lambda host: iter(network.get(host, ())))
    monkeypatch.setattr(addresses, "interface_addresses", lambda: interfaces)
    assert reachable_address(url) == "127.0.0.1", "there is no network at all"
    interfaces.append("10.77.0.1")
    assert reachable_address(url) == "10.77.0.1", "there is no default route"
    network["2001:db8::1"] = ["2001:db8::77"]
    assert reachable_address(url) == "2001:db8::77"
    network["192.0.2.1"] = ["172.16.0.9"]
    assert reachable_address(url) == "172.16.0.9"


def test_a_setting_says_which_of_several_networks_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "interface_addresses", lambda: ["192.168.1.4", "10.1.0.4"])
    assert reachable_address("nats://bus.lab:4222", "10.0.0.0/8") == "10.1.0.4"
    assert reachable_address("nats://bus.lab:4222", "gpu7.lab") == "gpu7.lab"
    with pytest.raises(SettingsError, match=r"is in 172\.16\.0\.0/12; its addresses are 192\.168\.1\.4, 10\.1\.0\.4"):
        reachable_address("", "172.16.0.0/12")
    with pytest.raises(SettingsError, match="expected a network such as"):
        reachable_address("", "10.0.0.0/99")


def test_the_kernel_says_from_where_a_host_is_reached() -> None:
    assert list(addresses._sources("127.0.0.1")) == ["127.0.0.1"]
    assert list(addresses._sources("no-such-host.invalid")) == []


async def test_an_executor_says_by_which_address_the_others_reach_it(world: World) -> None:
    await world.node("n1")
    await world.node("n2", address="10.0.0.7")
    said = [(await world.joined(node_id))[-1].labels["address"] for node_id in ("n1", "n2")]
    assert said == [reachable_address(""), "10.0.0.7"]
