"""Nodes, sweeps, the doctor, and running Penstock itself, as far as no server is needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_gateway import FakeGateway, node_view

from penstock.client import Client
from penstock_bus import Rejection
from penstock_bus.health import VERSION, Metrics, Vitals, endpoints
from penstock_bus.memory import MemoryBus
from penstock_cli.commands import cluster, up
from penstock_cli.commands.cluster import node_table
from penstock_cli.value_formats import clock, now_s
from penstock_log import Device, request_bodies, views

Run = Callable[..., tuple[int, str, str]]

SWEEP = """\
name: search
metric: accuracy
trials: 8
job: {name: trial, command: ["true"]}
space:
  lr: {kind: choice, values: [0.1, 0.01]}
"""


@pytest.fixture
def sweep_file(tmp_path: Path) -> str:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    return str(tmp_path / "sweep.yaml")


def test_nodes_show_what_is_busy_and_what_is_emulated(penstock: Run) -> None:
    assert penstock("nodes")[1] == (
        "NODE  POOL     ST  BUSY  IDLE  KINDS              HEARD\nn1    default  up     1     1  fast:2 (emulated)  -\n"
    )
    assert penstock("nodes", "-o", "wide")[1].splitlines()[1].split() == [
        "n1", "default", "up", "n1/fast0", "fast", "16GiB", "emulated", "1x", "j1", "-", "-",
    ]  # fmt: skip
    assert msgspec.json.decode(penstock("nodes", "-o", "json")[1], type=views.NodesView).nodes[0].id == "n1"


def test_draining_says_who_why_and_whether_to_preempt(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("node", "drain", "n1", "--preempt", "--reason", "new fan")[:2] == (0, "n1: done\n")
    (ask,) = gateway.asked
    assert isinstance(ask, request_bodies.DrainRequest)
    assert (ask.id, ask.preempt, ask.reason) == ("n1", True, "new fan")
    assert penstock("node", "resume", "n1")[0] == 0


def test_devices_are_drained_and_resumed_one_by_one(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("node", "drain", "n1", "n2", "--device", "3", "--device", "5", "--reason", "a fan")[0] == 0
    assert [(ask.id, ask.device, ask.reason) for ask in gateway.asked] == [
        ("n1", 3, "a fan"),
        ("n1", 5, "a fan"),
        ("n2", 3, "a fan"),
        ("n2", 5, "a fan"),
    ]
    gateway.asked.clear()
    assert penstock("node", "resume", "n1", "--device", "3")[0] == 0
    assert [(ask.id, ask.device) for ask in gateway.asked] == [("n1", 3)]


def test_a_device_is_named_as_all_lists_name_it(penstock: Run, gateway: FakeGateway) -> None:
    gateway.nodes = [node_view("n1"), node_view("n11"), node_view("vm2")]
    for words in (("n1", "--device", "fast1"), ("n1", "--device", "n1/fast1"), ("vm", "--device", "vm2/fast0")):
        assert penstock("node", "drain", *words)[0] == 0
    assert penstock("node", "resume", "n1", "n11", "--device", "n11/fast1", "--device", "0")[0] == 0
    asked = [(ask.id, ask.device) for ask in gateway.asked if hasattr(ask, "device")]
    assert asked == [("n1", 1), ("n1", 1), ("vm", 0), ("n1", 0), ("n11", 1), ("n11", 0)]


def test_a_device_that_is_not_there_is_told_with_those_that_are(penstock: Run, gateway: FakeGateway) -> None:
    code, _, err = penstock("node", "drain", "n1", "--device", "slow1")
    assert (code, err) == (
        2,
        "penstock: node n1 has no device slow1; expected a number, or one of: n1/fast0, n1/fast1\n",
    )
    code, _, err = penstock("node", "drain", "n1", "--device", "n2/fast1")
    assert (code, err) == (2, "penstock: --device n2/fast1 is none of n1; name its node too\n")
    assert not any(hasattr(ask, "device") for ask in gateway.asked)


def test_a_device_that_failed_is_no_idle_one_and_says_why(penstock: Run, gateway: FakeGateway) -> None:
    (node,) = gateway.nodes
    device = msgspec.structs.replace(node.devices[1], state="failed", reason="XID 79: off the bus")
    gateway.nodes = [msgspec.structs.replace(node, devices=(node.devices[0], device))]
    assert penstock("nodes")[1].splitlines()[1].split()[:7] == ["n1", "default", "up", "1", "0", "+1", "failed"]
    assert "n1/fast1 (failed: XID 79: off the bus)" in " ".join(penstock("nodes", "-o", "wide")[1].split())


def test_status_counts_what_there_is(penstock: Run) -> None:
    assert penstock("status")[1].splitlines() == [
        "jobs:          1 PD, 2 R",
        "nodes:         1 up",
        "fast devices:  1 busy, 1 idle",
        "services:      1 ranker",
        "log:           sequence 7",
        "version:       0.1.0",
    ]


def test_a_sweep_is_submitted_from_a_file_with_flags_over_it(
    penstock: Run, gateway: FakeGateway, sweep_file: str
) -> None:
    assert penstock("tune", sweep_file, "--trials", "4", "--seed", "7", "--max-gpus", "2") == (0, "s1\n", "")
    (ask,) = gateway.asked
    assert isinstance(ask, request_bodies.TuneRequest)
    assert (ask.spec.trials, ask.spec.seed, ask.spec.max_gpus) == (4, 7, 2)
    assert ask.spec.job.user


def test_a_sweep_file_with_a_mistake_is_told_where(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(SWEEP.replace("choice", "choise"))
    code, _, err = penstock("tune", str(tmp_path / "bad.yaml"))
    assert code == 2
    assert "bad.yaml:6: space.lr.kind: expected one of" in err
    assert "did you mean `choice`?" in err


def test_a_sweep_without_its_script_is_refused_before_all_trials_fail(penstock: Run, sweep_file: str) -> None:
    path = Path(sweep_file)
    path.write_text(SWEEP.replace('"true"', "python, nowhere.py"))
    code, _, err = penstock("tune", sweep_file)
    assert code == 2
    assert "nowhere.py; check the path, or give --no-check" in err
    assert penstock("tune", sweep_file, "--no-check")[0] == 0


def test_nodes_tell_real_devices_from_emulated_ones() -> None:
    node = node_view()
    bare = views.DeviceView(
        name="n1/cpu2", device=Device(index=2, kind="cpu", backend="cpu", memory_bytes=1 << 30), job_id=""
    )
    _, (row,) = node_table([msgspec.structs.replace(node, devices=(*node.devices, bare))], 0.0)
    assert row[5] == "cpu:1 fast:2 (emulated)"


def test_the_help_names_every_command_in_a_whole_sentence(penstock: Run) -> None:
    assert "..." not in penstock("--help")[1].replace("[ARGS]...", "")


def test_sweeps_are_listed_shown_and_cancelled(penstock: Run, sweep_file: str) -> None:
    penstock("tune", sweep_file)
    assert penstock("sweep", "ls")[1].splitlines()[1].split() == [
        "s1", "search", "running", "0/8", "accuracy", "(max)", "-", "-",
    ]  # fmt: skip
    assert "trials:     0/8 done\n" in penstock("sweep", "show", "s1")[1]
    assert penstock("sweep", "show", "s1")[1].splitlines()[-1].split() == ["s1-3", "R", "0", "1", "-", "lr=0.1"]
    assert penstock("sweep", "best", "s1")[0] == 1, "no trial has a value yet"
    assert penstock("sweep", "export", "s1")[1].splitlines() == [
        "job_id,number,bracket,rung,budget,group,gpus,state,value,problem,promoted,lr",
        "s1-3,0,0,0,0,0,1,R,,,False,0.1",
    ]
    assert penstock("sweep", "cancel", "s1")[:2] == (0, "s1: done\n")


def test_of_very_many_sweeps_the_newest_are_listed_and_how_to_see_the_others(
    penstock: Run, gateway: FakeGateway, sweep_file: str
) -> None:
    penstock("tune", sweep_file)
    one = gateway.sweeps["s1"]
    gateway.sweeps = {f"s{n}": msgspec.structs.replace(one, id=f"s{n}") for n in range(2_600)}
    _, *rows, last = penstock("sweep", "ls")[1].splitlines()
    assert [row.split()[0] for row in rows] == [f"s{n}" for n in range(2_550, 2_600)]
    assert last == "…and 2550 more: --limit 2600"
    assert penstock("sweep", "ls", "--limit", "2600")[1].splitlines()[-1].split()[0] == "s2599"
    limits = [ask.limit for ask in gateway.asked if isinstance(ask, request_bodies.SweepsRequest)]
    assert limits == [50, 1000, 1000, 600], "what one message has room for"


@pytest.mark.parametrize(
    ("end", "code", "told"),
    [
        ({"state": "failed", "reason": "no trial reported 'acc'"}, 1, "s1 failed: no trial reported 'acc'"),
        ({"state": "cancelled"}, 130, "s1 cancelled"),
        (
            {"state": "completed", "best_job_id": "s1-3", "best_value": 0.5},
            0,
            "s1 completed: best accuracy 0.5 by s1-3",
        ),
        (
            {
                "state": "completed",
                "best_job_id": "s1-3",
                "best_value": 0.5,
                "done": 16,
                "failed": 4,
                "failed_promotions": 4,
                "first_failed": "s1-2-r1",
                "first_error": "exit code 1: NameError: loss",
            },
            1,
            "s1 completed: best accuracy 0.5 by s1-3\npenstock: 4 of 16 runs failed, 4 of them promoted; "
            "the first, s1-2-r1: exit code 1: NameError: loss",
        ),
    ],
)
def test_waiting_for_a_sweep_says_how_it_ended_and_why(
    penstock: Run, gateway: FakeGateway, sweep_file: str, *, end: dict[str, Any], code: int, told: str
) -> None:
    gateway.sweep_end = {"finished_s": 9.0, **end}
    assert penstock("tune", sweep_file, "--no-check", "--wait") == (code, "s1\n", f"penstock: sweep {told}\n")


def test_a_list_of_sweeps_says_which_have_failures_and_the_first_error(
    penstock: Run, gateway: FakeGateway, sweep_file: str
) -> None:
    failed = {"failed": 2, "first_failed": "s1-1", "first_error": "exit code 1: NameError: loss", "done": 5}
    gateway.sweep_end = {"finished_s": 9.0, "state": "completed", **failed}
    penstock("tune", sweep_file, "--no-check", "--wait")
    header, row = penstock("sweep", "ls")[1].splitlines()
    assert header.split()[-2:] == ["FAILED", "FIRST-ERROR"]
    assert row.split()[-6:] == ["2", "exit", "code", "1:", "NameError:", "loss"]
    shown = " ".join(penstock("sweep", "show", "s1")[1].split())
    assert "failed: 2 of 5 runs failed; the first, s1-1: exit code 1: NameError: loss" in shown


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_told_without_a_command(penstock: Run, flag: str) -> None:
    assert penstock(flag) == (0, f"penstock {VERSION}\n", "")


def test_the_doctor_names_what_is_missing_and_what_to_do(penstock: Run, gateway: FakeGateway) -> None:
    gateway.nodes = []
    code, out, _ = penstock("doctor")
    assert code == 1
    lines = out.splitlines()
    assert "fail  ranker       no replica answers; start one: `penstock service ranker`" in lines
    assert "fail  nodes        none is up; start an executor: `penstock service executor` on each node" in lines
    assert json.loads(penstock("doctor", "-o", "json")[1])[0]["what"] == "data folder"


def test_the_doctor_says_who_leads_for_how_long_and_how_far_he_has_decided() -> None:
    standby = views.ReplicaView(service="matcher", id="b", heard_s=1.0, ready=True, elected=True, last_seq=120)
    first = msgspec.structs.replace(standby, id="a", leading=True, term_s=75.0, lease_s=0.4, decided_seq=118)
    assert cluster.line_of(cluster.leader("matcher", [first, standby])) == (
        "ok    matcher  ready; a has led for 1m15s, its lease 0.4s old, last decision at fact 118 of 120"
    )
    assert cluster.leader("gateway", [msgspec.structs.replace(standby, elected=False)]).detail == "ready"


def test_the_doctor_is_not_green_where_nobody_leads_or_facts_wait_for_a_decision() -> None:
    standby = views.ReplicaView(service="matcher", id="b", heard_s=1.0, ready=True, elected=True, last_seq=120)
    nobody = cluster.leader("matcher", [standby])
    assert (nobody.level, nobody.detail) == ("fail", "ready, but none of its 1 replica has the lead")
    stuck = msgspec.structs.replace(standby, id="a", leading=True, term_s=75.0, lease_s=0.4, undecided_s=150.0)
    found = cluster.leader("matcher", [stuck, standby])
    assert (found.level, found.remedy) == ("fail", "see the log of matcher a, and restart it")
    assert found.detail.startswith("ready, but facts have waited 2m30s for a decision: a has led for 1m15s")
    alone = msgspec.structs.replace(stuck, service="profiler", elected=False)
    assert cluster.leader("profiler", [alone]).level == "fail"


def test_the_doctor_counts_the_commits_that_all_readers_dropped(penstock: Run, gateway: FakeGateway) -> None:
    reason = "ranker wrote job.submitted.v1 on penstock.evt.rank.evil"
    for seq in (3, 4):
        gateway.before.append(
            lambda bus, seq=seq: bus.reject(
                f"evt-{seq}", Rejection(reason=reason, origin=f"EVT penstock.evt.rank.evil seq {seq}", body=b"{}")
            )
        )
    _, out, _ = penstock("doctor")
    (line,) = [line for line in out.splitlines() if " log " in line]
    assert line.startswith("warn  log")
    assert f"2 commits were dropped by all readers, the last because {reason}; list them with `penstock" in line


async def test_the_doctor_passes_on_what_a_service_says_of_itself(memory_bus: MemoryBus) -> None:
    vitals = Vitals(service="matcher", replica="r1", ready=True, note="compiles its kernels")
    async with (
        memory_bus.serve("penstock-matcher", "1", endpoints(lambda: vitals, Metrics())),
        Client(bus=memory_bus, nobody_s=0.0) as client,
    ):
        found = [finding async for finding in cluster.ask(client)]
    assert cluster.Finding("ok", "matcher", "ready; it compiles its kernels") in found


def test_the_doctor_compares_clocks_by_the_last_heartbeat() -> None:
    found = views.NodesView(nodes=(node_view(heard_s=100.0), node_view("n2", heard_s=90.0)), seq=1)
    assert cluster.skew(found, 101.0) == cluster.Finding("ok", "clock", "agrees with the gateway's")
    ahead = cluster.skew(found, 160.0)
    assert ahead is not None
    assert (ahead.level, ahead.detail) == ("warn", "this machine's clock is 1m00s ahead of the gateway's")
    assert cluster.skew(views.NodesView(nodes=(), seq=1), 0.0) is None


def test_the_doctor_counts_one_as_one(memory_bus: MemoryBus) -> None:
    node = node_view()
    alone = msgspec.structs.replace(node, devices=node.devices[:1])
    assert cluster.check_nodes(views.NodesView(nodes=(alone,), seq=1)).detail == "1 up with 1 device"

    async def log() -> cluster.Finding:
        await memory_bus.reject("x", Rejection(reason="no JSON", origin="inbox", body=b"x"))
        async with Client(bus=memory_bus) as client:
            return await cluster._log(client)

    assert "1 message was rejected, the last because no JSON" in asyncio.run(log()).detail


def test_the_doctor_says_how_runs_are_held_to_their_part_of_the_hosts_memory() -> None:
    nodes = [node_view(f"n{i}", held_by=held_by) for i, held_by in enumerate(("cgroup", "rlimit", "cgroup", ""))]
    found = cluster.host_memory(views.NodesView(nodes=tuple(nodes), seq=1))
    assert found is not None
    assert found.detail == "runs are held to their part by cgroup on 2 nodes and by rlimit on 1 node"
    assert cluster.host_memory(views.NodesView(nodes=(node_view(),), seq=1)) is None


@pytest.mark.parametrize("state", ["lost", "left"])
def test_a_node_that_is_gone_has_no_idle_devices(penstock: Run, gateway: FakeGateway, state: str) -> None:
    gateway.nodes = [node_view(), node_view("n2", state=state)]
    _, out, _ = penstock("nodes", "-a")
    header, up, gone = (line.split() for line in out.splitlines())
    at = header.index("IDLE")
    assert (up[at], gone[at]) == ("1", "0")


def test_nodes_that_left_are_listed_where_all_are_asked_for_with_when(penstock: Run, gateway: FakeGateway) -> None:
    gone_s = now_s() - 3_600.0
    gone = [node_view(state, state=state, gone_s=gone_s, devices=()) for state in ("lost", "left")]
    gateway.nodes = [node_view(), *gone]
    assert [line.split()[0] for line in penstock("nodes")[1].splitlines()] == ["NODE", "n1", "lost"]
    everything = penstock("nodes", "-a")[1].splitlines()
    assert everything[3].split()[2] == "left"
    assert everything[3].endswith("1h00m ago")
    found = msgspec.json.decode(penstock("nodes", "-o", "json")[1], type=views.NodesView)
    assert [node.id for node in found.nodes] == ["n1", "lost"]


def test_nodes_of_pilots_say_of_which_and_until_when(penstock: Run, gateway: FakeGateway) -> None:
    gateway.nodes = [node_view(), msgspec.structs.replace(node_view("n2"), pilot="lab-1", until_s=1_000_000.0)]
    for words in (("nodes",), ("nodes", "-o", "wide")):
        header, own, *_, pilot = penstock(*words)[1].splitlines()
        assert header.split()[-2:] == ["PILOT", "UNTIL"]
        assert own.split()[-2:] == ["-", "-"]
        assert pilot.split()[-3] == "lab-1"
        assert pilot.endswith(clock(1_000_000.0))
    gateway.nodes = [node_view()]
    assert "PILOT" not in penstock("nodes")[1]


def test_the_doctor_warns_of_lost_nodes() -> None:
    found = views.NodesView(nodes=(node_view(), node_view("n2", state="lost")), seq=1)
    assert cluster.check_nodes(found).detail == "1 up with 2 devices; lost: n2"


def test_the_doctor_tells_a_dead_port_from_a_server_that_is_not_nats() -> None:
    async def greeted(greeting: bytes) -> cluster.Finding:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(greeting)
            writer.close()

        async with await asyncio.start_server(greet, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            return await cluster.server(f"nats://127.0.0.1:{port}")

    assert "is no NATS server" in asyncio.run(greeted(b"SSH-2.0\r\n")).detail
    assert "without JetStream" in asyncio.run(greeted(b'INFO {"version":"2.11.0"}\r\n')).detail
    assert asyncio.run(greeted(b'INFO {"version":"2.11.0","jetstream":true,"max_payload":1048576}\r\n')).level == "ok"
    dead = asyncio.run(cluster.server("nats://127.0.0.1:1"))
    assert (dead.level, dead.remedy) == (
        "fail",
        "start one with `penstock up`, or name another with --url or PENSTOCK_URL",
    )


def test_the_doctor_sees_a_full_disk_coming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    none = cluster.disk(tmp_path / "none")
    assert (none.level, none.detail) == ("warn", f"not checked: there is no {tmp_path / 'none'}")
    for free, level in ((50 << 20, "fail"), (500 << 20, "warn"), (50 << 30, "ok")):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr("shutil.disk_usage", lambda _, usage=usage: usage)
        assert cluster.disk(tmp_path).level == level


def test_up_refuses_devices_it_cannot_make(penstock: Run, tmp_path: Path) -> None:
    code, _, err = penstock("up", "--data", str(tmp_path), "--emulate", "fast:x")
    assert code == 2
    assert err.startswith("penstock: --devices: count 'x' at column 6: expected a whole number, 1 to 100000")


def test_up_refuses_services_that_do_not_exist(penstock: Run, tmp_path: Path) -> None:
    code, _, err = penstock("up", "--data", str(tmp_path), "--devices", "cpu", "--replicas", "rancher=2")
    assert code == 1
    assert err.startswith("penstock: there is no service 'rancher'; expected one of gateway, ")
    assert penstock("up", "--replicas", "ranker=many")[2] == (
        "penstock: --replicas ranker=many: expected a whole number\n"
    )


def test_up_refuses_a_name_that_no_machine_has_before_it_makes_anything(penstock: Run, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    code, _, err = penstock("up", "--data", str(folder), "--devices", "cpu", "--host", "0.0.0.0", "--name", "bad name")  # noqa: S104
    assert (code, folder.exists()) == (1, False)
    assert err.startswith("penstock: --name 'bad name' is no host name; expected one such as cluster.example.org")


def test_nothing_to_stop_is_exit_code_4(penstock: Run, tmp_path: Path) -> None:
    assert penstock("down", "--data", str(tmp_path)) == (4, "", f"penstock: nothing runs on {tmp_path}\n")


def test_a_service_joins_the_data_folder_it_is_given(
    penstock: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(up, "become", lambda name, env: became.append((name, env)))
    assert penstock("service", "ranker", "--data", str(tmp_path))[0] == 2
    login = tmp_path / "nats" / "logins" / "ranker.json"
    login.parent.mkdir(parents=True)
    login.write_text("{}")
    (tmp_path / "penstock.json").write_text('{"url": "nats://h:1", "pid": 1, "started_s": 0, "version": "0"}')
    assert penstock("service", "ranker", "--data", str(tmp_path))[0] == 0
    assert penstock("service", "ranker", "--url", "nats://x:1")[0] == 0
    assert became == [
        ("ranker", {"PENSTOCK_URL": "nats://h:1", "PENSTOCK_CREDENTIALS": str(login)}),
        ("ranker", {"PENSTOCK_URL": "nats://x:1"}),
    ]


def test_the_schema_needs_no_server(penstock: Run, gateway: FakeGateway) -> None:
    assert json.loads(penstock("schema")[1])["title"] == "Penstock job"
    assert json.loads(penstock("schema", "sweep")[1])["title"] == "Penstock sweep"
    assert gateway.asked == []


def test_completion_scripts_are_printed(penstock: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "_PENSTOCK_COMPLETE" in penstock("completion", shell)[1]
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert penstock("completion")[2] == "penstock: there is no completion for tcsh; expected bash, zsh or fish\n"


def test_a_new_service_is_written_once(penstock: Run, tmp_path: Path) -> None:
    code, out, _ = penstock("new", "service", "my-notifier", "--into", str(tmp_path))
    assert code == 0
    assert all(Path(line).exists() for line in out.splitlines())
    code, _, err = penstock("new", "service", "my-notifier", "--into", str(tmp_path))
    assert code == 2
    assert "exists and is not empty" in err
    assert penstock("new", "service", "My Notifier")[0] == 2
