"""What people are told: which facts count, how many messages come of them, and what a restart remembers."""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from gateway_cases import NOW_S, PATIENCE_S, gateway, refusal, submitted, sweep_spec
from gateway_cases import spec as job_spec
from message_servers import webhook
from structlog.testing import capture_logs

from penstock_bus.follower import FoldFollower
from penstock_bus.memory import MemoryBus
from penstock_bus.shell import Shell
from penstock_gateway import machine, notifications, runner
from penstock_gateway.machine import GatewaySettings, GatewayState
from penstock_gateway.notification_sender import Errand, carried_out, problem
from penstock_gateway.notification_targets import TargetFolder, send
from penstock_gateway.notifications import NotificationRule, Pace
from penstock_gateway.notifier import Notifier
from penstock_log import (
    AnyEvent,
    JobCancelled,
    JobFinished,
    NotificationRuleRemoved,
    NotificationRuleSet,
    NotificationSent,
    SweepFinished,
    SweepSubmitted,
    UserRemoved,
    subjects,
)
from penstock_log.lifecycle import JobTable

PACE = Pace(gather_s=10.0, every_s=60.0)


def rule(name: str = "n1", **fields: Any) -> NotificationRuleSet:
    given = {"at_s": NOW_S, "user": "ada", "rule": name, "target": "hook", "on": ("cancelled",), **fields}
    return NotificationRuleSet(**given)


def cancelled(job_id: str, at_s: float = NOW_S + 5, **fields: Any) -> list[AnyEvent]:
    """Return the life of a job that was cancelled before it ran."""
    whose = {"user": "ada", "name": "train", **fields}
    end = JobFinished(at_s=at_s, job_id=job_id, state="cancelled", submitted_s=NOW_S, name="train", user="ada")
    return [submitted(job_id, **whose), JobCancelled(at_s=at_s, job_id=job_id, reason="enough"), end]


class Told:
    """A fold of the gateway, and the sequence that it has come to."""

    def __init__(self, *facts: AnyEvent) -> None:
        self.state, self.seq = GatewayState(), 0
        self.apply(*facts)

    def apply(self, *facts: AnyEvent) -> None:
        for fact in facts:
            self.seq += 1
            machine.apply(self.state, fact, self.seq)

    def of(self, name: str = "n1") -> NotificationRule:
        return self.state.notifications.rules[name]

    def sent(self, at_s: float, *, error: str = "", name: str = "n1") -> None:
        jobs = self.of(name).left
        self.apply(NotificationSent(at_s=at_s, user="ada", rule=name, until_seq=self.seq, jobs=jobs, error=error))


def test_a_thousand_ends_are_one_message_that_says_how_many_there_were() -> None:
    told = Told(rule(), *(fact for number in range(1000) for fact in cancelled(f"j{number}")))
    text = notifications.message(told.of())
    assert text.title == "Penstock: 1000 jobs cancelled"
    assert text.jobs == 1000
    assert "train (j0) cancelled: enough" in text.body
    assert "… and 980 more" in text.body
    assert len(text.body) < 2000
    told.sent(NOW_S + 20)
    assert (told.of().left, told.of().messages) == (0, 1)
    assert notifications.next_send_s(told.of(), PACE) is None


def test_what_comes_while_a_message_is_under_way_is_told_by_the_next_one() -> None:
    told = Told(rule(), *cancelled("j1"))
    before = told.seq
    told.apply(*cancelled("j2"))
    told.apply(NotificationSent(at_s=NOW_S + 20, user="ada", rule="n1", until_seq=before, jobs=1))
    assert [notice.job_id for notice in told.of().notices] == ["j2"]
    assert notifications.next_send_s(told.of(), PACE) == NOW_S + 80


def test_only_those_jobs_are_told_that_a_rule_is_about() -> None:
    told = Told(
        rule("mine"),
        rule("one", about="j2"),
        rule("sweep", about="s1"),
        rule("others", user="bob", about="j1"),
        rule("failed", on=("failed",)),
        rule("by-job", on=()),
        *cancelled("j1", notify=("cancelled",)),
        *cancelled("j2"),
        *cancelled("s1-0", parent="s1"),
        *cancelled("b1", user="bob"),
    )
    found = {one.id: [notice.job_id for notice in one.notices] for one in told.state.notifications.rules.values()}
    assert found == {
        "mine": ["j1", "j2", "s1-0"],
        "one": ["j2"],
        "sweep": ["s1-0"],
        "others": ["j1"],
        "failed": ["j1"],  # as j1 asks for it
        "by-job": ["j1"],
    }


def test_a_target_that_is_down_is_tried_less_and_less_often_and_loses_nothing() -> None:
    told, tried = Told(rule(), *cancelled("j1")), []
    at_s = NOW_S + 15
    for _ in range(9):
        tried.append(at_s)
        told.sent(at_s, error="refused")
        at_s = notifications.next_send_s(told.of(), PACE) or 0.0
    waits = [after - before for before, after in pairwise(tried)]
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]
    assert (told.of().failures, told.of().error, told.of().left) == (9, "refused", 1)
    told.sent(at_s)
    assert (told.of().failures, told.of().error, told.of().left) == (0, "", 0)


def test_a_job_that_waits_for_long_is_told_once_for_each_time() -> None:
    told = Told(rule(on=(), waiting_s=3600.0), submitted("j1", user="ada"), submitted("j2", user="ada", hold=True))
    jobs = list(told.state.jobs)
    assert notifications.waiting(told.of(), jobs, NOW_S + 3000) == []
    (notice,) = notifications.waiting(told.of(), jobs, NOW_S + 4000)
    assert (notice.job_id, notice.span_s) == ("j1", 4000.0)
    text = notifications.message(told.of(), [notice])
    assert text.title == "Penstock: job (j1) has been waiting for 1 h 6 min"
    told.apply(NotificationSent(at_s=NOW_S, user="ada", rule="n1", until_seq=9, jobs=1, waiting=text.waiting))
    assert notifications.waiting(told.of(), jobs, NOW_S + 9000) == []


def test_a_gateway_that_starts_from_a_snapshot_knows_what_is_left_to_tell() -> None:
    told = Told(rule(), *(fact for number in range(60) for fact in cancelled(f"j{number}")))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(told.state.notifications), type=notifications.Notifications)
    assert again == told.state.notifications
    assert again.rules["n1"].left == 60


def test_rules_end_by_a_command_or_with_their_person() -> None:
    told = Told(rule("a"), rule("b"), rule("c", user="bob", about="j1"))
    told.apply(NotificationRuleRemoved(at_s=NOW_S, user="ada", rule="a"), UserRemoved(at_s=NOW_S, user="bob"))
    assert list(told.state.notifications.rules) == ["b"]
    assert told.state.notifications.of_about == {}
    told.apply(*cancelled("j1"), NotificationSent(at_s=NOW_S, user="ada", rule="a", until_seq=1, jobs=1))


def test_names_and_reasons_cannot_forge_lines() -> None:
    told = Told(rule(), submitted("j1", user="ada"))
    told.apply(JobCancelled(at_s=NOW_S, job_id="j1", reason="a\nSubject: b\x1b[2J"), *cancelled("j1")[2:])
    body = notifications.message(told.of()).body
    assert "\nSubject" not in body
    assert "\x1b" not in body


@pytest.mark.parametrize(
    "url", ["dbus://", "json://h?Template=/etc/passwd", "json://h?+template=/x", "nothing", "://x"]
)
def test_addresses_that_reach_into_the_gateways_machine_are_refused(url: str) -> None:
    assert problem(url, machine.NOTIFY_SCHEMES)


def test_what_apprise_says_of_an_address_has_no_token_in_it() -> None:
    url = "slack://hush-hush@tok-1234/x"
    error = carried_out(errand(url, body="")).error
    assert error
    assert not [part for part in ("hush-hush", "tok-1234") if part in error]


def errand(url: str, **fields: Any) -> Errand:
    return Errand(**{"url": url, "title": "t", "body": "b", "schemes": machine.NOTIFY_SCHEMES, **fields})


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("json://h/,form://h2/", "expected one address"),
        ("json://h/?x=y,discord://123/abc?template=/etc/passwd", "expected one address"),
        ("json://h?a=1;template=/etc/passwd", "the parameter 'template' reads a file"),
        ("discord://1234/abcd?+x=y;TEMPLATE=/etc/passwd", "the parameter 'template' reads a file"),
        ("mailto://u:p@h.org?pgpprv=/etc/passwd", "the parameter 'pgpprv' reads a file"),
        (f"mailto://u:p@h.org?to={','.join(f'a{i}@h.org' for i in range(199))}", "199 recipients, and 20 are the most"),
        ("form://h/", "no message goes to form:// here"),
    ],
)
def test_what_apprise_makes_of_an_address_is_one_target_that_is_allowed(url: str, why: str) -> None:
    allowed = ("json", "mailto", "discord")
    assert why in (carried_out(errand(url, body="", schemes=allowed)).error)


def test_nothing_is_returned_of_what_a_server_answers_but_its_status() -> None:
    with webhook() as hook:
        hook.status = 403
        error = carried_out(errand(f"json://127.0.0.1:{hook.port}")).error
    assert error == "the server answered 403 Forbidden"
    error = carried_out(errand(f"json://127.0.0.1:{hook.port}")).error
    assert error == "the server could not be reached: nothing listens at this address and port (connection refused)"
    error = carried_out(errand("json://nowhere.invalid/hook")).error
    assert error == "the server could not be reached: its name is not known"


async def test_no_message_goes_to_a_network_that_is_refused_whatever_name_leads_there() -> None:
    with webhook() as hook:
        error = await send(GatewaySettings(notify_timeout_s=60.0))(errand(f"json://localhost:{hook.port}"))
        assert "notify_refused" in error
        assert hook.tries == 0


def test_a_sender_that_ends_before_it_has_read_its_errand_is_told_as_one_that_failed() -> None:
    async def errors() -> set[str]:
        sending = send(GatewaySettings(), ["false"])
        return {await sending(errand("json://lab.invalid", body="x" * size)) for size in [0, 100, 100_000] * 20}

    assert uvloop.run(errors()) == {"the sending program ended with exit code 1"}  # on which services run


async def test_a_sender_reads_its_errand_from_the_beginning_and_the_address_is_in_no_file() -> None:
    shown = 'import sys; print(sys.stdin.read(9), end=""); import os; sys.exit(os.fstat(0).st_nlink)'
    assert await send(GatewaySettings(), [sys.executable, "-c", shown])(errand("json://lab.invalid")) == (
        "the sending program ended with exit code 0"
    )


@pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost", "[::1]:80", "127.9.9.9"])
def test_an_address_that_no_message_ever_reaches_is_refused_when_it_is_added(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    monkeypatch.delenv("https_proxy", raising=False)
    settings = GatewaySettings()
    asked = errand(f"json://{host}/hook", body="", refused=settings.notify_refused)
    assert "notify_refused" in carried_out(asked).error
    assert carried_out(msgspec.structs.replace(asked, refused=())).error == ""
    elsewhere = errand("json://hooks.example.org/127.0.0.1", body="", refused=settings.notify_refused)
    assert carried_out(elsewhere).error == ""


def test_networks_that_are_none_are_refused_in_the_settings() -> None:
    with pytest.raises(msgspec.ValidationError, match="does not appear to be"):
        msgspec.convert({"notify_refused": ["localhost"]}, GatewaySettings)


def test_the_end_of_a_sweep_is_told_with_its_best_value() -> None:
    spec = sweep_spec(id="s1", job=job_spec(user="ada"))
    told = Told(rule(on=("completed",)), rule("n2", about="s1"), rule("n3", user="bob"))
    told.apply(SweepSubmitted(at_s=NOW_S, sweep_id="s1", spec=spec))
    told.apply(SweepFinished(at_s=NOW_S, sweep_id="s1", state="completed", best_job_id="s1-3", best_value=0.5))
    assert notifications.message(told.of()).body.startswith("sweep s (s1) completed: best 0.5, by s1-3\n")
    assert [told.of(name).left for name in ("n1", "n2", "n3")] == [1, 0, 0]


async def test_a_rule_that_is_asked_for_again_is_the_same_rule(tmp_path: Path) -> None:
    settings = GatewaySettings(append_timeout_s=60.0, query_timeout_s=60.0, notify_dir=str(tmp_path / "notify"))
    asked = {"url": "json://192.0.2.1/token", "on": ["failed"], "rule": "n12345678", "by": "ada"}
    async with MemoryBus() as bus, gateway(bus, settings=settings) as running:
        first, second = await asyncio.gather(running.command("notify", asked), running.command("notify", asked))
        third = await running.command("notify", {**asked, "name": "other"})
        assert {one["id"] for one in (first, second, third)} == {"n12345678"}
        assert third["message"] == "n12345678 is there already"
        assert [one["id"] for one in (await running.query("notifications"))["rules"]] == ["n12345678"]
        assert await refusal(running.command("notify", {**asked, "by": "bob"})) == (
            409,
            "$.rule: this id is taken; choose another one, or leave it out",
        )
        stored = [stored.commit for stored in await bus.read(subjects.notify("ada"))]
        assert "token" not in repr(stored)
        (kept,) = (tmp_path / "notify").iterdir()
        assert kept.read_text() == asked["url"]
        assert kept.stat().st_mode & 0o777 == 0o600
        other = {**asked, "url": "json://192.0.2.1/other"}
        assert (await running.command("notify", other))["message"] == "n12345678 is there already"
        assert [path.read_text() for path in (tmp_path / "notify").iterdir()] == [asked["url"]]
        await running.command("remove_notification", {"id": "n12345678", "by": "ada"})
        assert list((tmp_path / "notify").iterdir()) == []


def test_addresses_without_a_rule_go_once_they_are_old_whatever_is_written_and_removed_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = TargetFolder(str(tmp_path))
    for name, age_s in (("kept", 9000.0), ("gone", 9000.0), ("old", 9000.0), ("new", 60.0)):
        folder.write(name, "json://h")
        os.utime(tmp_path / name, (NOW_S - age_s, NOW_S - age_s))
    stat = Path.stat

    def stat_after_another_gateway(path: Path, **how: Any) -> os.stat_result:
        if path.name == "gone":
            path.unlink(missing_ok=True)
        return stat(path, **how)

    monkeypatch.setattr(Path, "stat", stat_after_another_gateway)
    folder.tidy({"kept"}, NOW_S)
    assert {path.name for path in tmp_path.iterdir()} == {"kept", "new"}


def test_a_folder_of_addresses_that_cannot_be_looked_at_is_told_in_the_log_and_nothing_else(tmp_path: Path) -> None:
    with capture_logs() as logs:
        TargetFolder(str(tmp_path / "not there")).tidy({"kept"}, NOW_S)
        assert logs == []
        TargetFolder(str(tmp_path / ("long" * 100))).tidy({"kept"}, NOW_S)
    assert [(one["event"], one["reason"]) for one in logs] == [("addresses_not_tidied", "File name too long")]


def notifier_on(bus: MemoryBus, folder: Path) -> tuple[Notifier, FoldFollower[GatewayState], TargetFolder]:
    live, targets = FoldFollower(bus, machine.decider(GatewaySettings())), TargetFolder(str(folder))
    shell = Shell(bus, "gateway", replica_id="r1")
    sending = send(GatewaySettings())
    return Notifier(shell, bus, live, GatewaySettings(), targets=targets, sending=sending), live, targets


async def test_the_address_of_a_removed_person_goes_while_the_same_gateway_leads(tmp_path: Path) -> None:
    async with MemoryBus() as bus:
        notifier, live, targets = notifier_on(bus, tmp_path)
        machine.apply(live.state, rule(), 1)
        targets.write("n1", "json://h")
        os.utime(tmp_path / "n1", (NOW_S, NOW_S))
        await notifier.tidy(NOW_S + 7200)
        assert targets.read("n1")
        machine.apply(live.state, UserRemoved(at_s=NOW_S, user="ada"), 2)
        await notifier.tidy(NOW_S + 7200 + 600)
        assert not targets.read("n1")


async def test_of_two_people_who_ask_for_one_id_at_once_the_first_has_it_with_their_own_address(tmp_path: Path) -> None:
    settings = GatewaySettings(append_timeout_s=60.0, query_timeout_s=60.0, notify_dir=str(tmp_path / "notify"))
    people = [{"url": f"json://192.0.2.1/{by}", "rule": "n12345678", "by": by} for by in ("ann", "bob")]
    async with MemoryBus() as bus, gateway(bus, settings=settings) as running:
        asked = (running.command("notify", one) for one in people)
        found = await asyncio.gather(*asked, return_exceptions=True)
        ((rule,), (kept,)) = (await running.query("notifications"))["rules"], (tmp_path / "notify").iterdir()
        assert kept.read_text() == f"json://192.0.2.1/{rule['user']}"
        told = {one["by"]: isinstance(answer, dict) for one, answer in zip(people, found, strict=True)}
        assert told == {one["by"]: one["by"] == rule["user"] for one in people}


def test_an_id_that_two_facts_have_is_that_of_the_first_one() -> None:
    told = Told(rule(kept_as="a"), rule(user="bob", kept_as="b"))
    assert (told.of().user, told.of().kept_as) == ("ada", "a")
    assert Told(rule()).of().kept_as == "n1"  # as rules of earlier logs have it


async def test_messages_to_silent_servers_keep_no_command_waiting_and_are_few_of_one_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, answered = asyncio.Semaphore(0), asyncio.Event()

    async def silent(_: Errand) -> str:
        begun.release()
        await answered.wait()
        return ""

    monkeypatch.setattr(runner, "send", lambda _: silent)
    settings = GatewaySettings(
        append_timeout_s=60.0, query_timeout_s=60.0, notify_dir=str(tmp_path), concurrent_commands=2
    )
    rules = [f"n{number}" for number in range(5)]
    for name in rules:
        TargetFolder(str(tmp_path)).write(name, "json://h")
    async with MemoryBus() as bus, gateway(bus, *map(rule, rules), submitted("j1"), settings=settings) as running:

        async def test(name: str) -> dict[str, Any]:
            return await running.command("test_notification", {"id": name, "by": "ada"})

        under_way = [asyncio.create_task(test(name)) for name in rules[:4]]
        async with asyncio.timeout(PATIENCE_S):
            for _ in under_way:
                await begun.acquire()
        code, why = await refusal(test(rules[4]))
        assert (code, "ada has 4 tests of addresses" in why) == (429, True)
        assert (await running.command("cancel", {"id": "j1", "by": "bob"}))["changed"]
        answered.set()
        assert {(await one)["state"] for one in under_way} == {"sent"}


def test_a_job_that_ends_while_it_is_told_that_it_waits_is_not_kept() -> None:
    told = Told(rule(on=(), waiting_s=60.0), *cancelled("j1"), submitted("j2", user="ada"))
    told.apply(NotificationSent(at_s=NOW_S, user="ada", rule="n1", until_seq=9, jobs=3, waiting=("j1", "j2", "none")))
    assert list(told.of().told) == ["j2"]


async def test_only_the_open_jobs_of_those_who_want_to_know_are_looked_at_for_long_waits_and_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts: list[AnyEvent] = [
        rule("own", on=(), waiting_s=60.0),
        rule("others", on=(), waiting_s=60.0, user="bob", about="s1"),
        rule("one", on=(), waiting_s=60.0, user="bob", about="j1"),
        rule("never", user="eve"),
        SweepSubmitted(at_s=NOW_S, sweep_id="s1", spec=sweep_spec(id="s1", job=job_spec(user="ada"))),
        *(submitted(job_id, user="ada") for job_id in ("j1", "j2")),
        submitted("s1-0", user="ada", parent="s1"),
        submitted("e1", user="eve"),
        *cancelled("over"),
    ]
    async with MemoryBus() as bus:
        notifier, live, _ = notifier_on(bus, tmp_path)
        for seq, fact in enumerate(facts, 1):
            machine.apply(live.state, fact, seq)
        monkeypatch.setattr(JobTable, "__iter__", None)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        found = await notifier.waiting(NOW_S + 100)
        beside.cancel()
        waits = {name: {notice.job_id for notice in notices} for name, notices in found.items()}
        assert waits == {"own": {"j1", "j2", "s1-0"}, "others": {"s1-0"}, "one": {"j1"}}
        assert turns >= len(waits)
