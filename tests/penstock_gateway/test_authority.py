"""What each role may do and see: every cell of the table in docs/access.md, and what follows from it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import pytest_asyncio
from gateway_cases import NOW_S, PATIENCE_S, Gateway, gateway, joined, placed, refusal, spec, submitted, sweep_spec
from message_servers import webhook

from penstock_bus import ServiceError
from penstock_bus.follower import FoldFollower
from penstock_bus.memory import MemoryBus
from penstock_gateway import machine, sight
from penstock_gateway.authority import LEAST, SERVICE, Caller, caller
from penstock_gateway.endpoints import RequestRefused
from penstock_gateway.machine import GatewaySettings
from penstock_gateway.notification_targets import TargetFolder
from penstock_log import (
    AllocationAdded,
    AllocationPaused,
    AllocationSpec,
    AnyEvent,
    JobHeld,
    JobSpec,
    NodeDrained,
    NodeLeft,
    NotificationRuleSet,
    ReservationMade,
    SweepSubmitted,
    TrialsMeasured,
    UserRemoved,
    UserSet,
    subjects,
    workload,
)
from penstock_log.request_bodies import PartsRequest
from penstock_log.users import Users

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOC = Path(__file__).parents[2] / "docs" / "access.md"
ROW = re.compile(r"^\| (?:`(\w+)`|(read \w+ ?\w*)) \|(.*)\|$", re.MULTILINE)
COLUMNS = ("viewer", "own", "team", "other", "operator", "admin")
WHO = {"viewer": "viola", "own": "uma", "team": "uma", "other": "uma", "operator": "oskar", "admin": "ada"}
WHOSE = {"viewer": "bob", "own": "uma", "team": "tom", "other": "bob", "operator": "bob", "admin": "bob"}
PEOPLE = (
    UserSet(user="viola", role="viewer", at_s=NOW_S),
    UserSet(user="uma", role="user", teams=("vision", "speech"), at_s=NOW_S),
    UserSet(user="tom", role="user", teams=("vision",), at_s=NOW_S),
    UserSet(user="bob", role="user", teams=("robots",), at_s=NOW_S),
    UserSet(user="oskar", role="operator", at_s=NOW_S),
    UserSet(user="ada", role="admin", at_s=NOW_S),
)
UNLIMITED = {"open_jobs": None, "commands_per_s": None}
TEAM = {"uma": "vision", "tom": "vision", "bob": "robots"}


class Cell(NamedTuple):
    request: str
    column: str
    expected: str


def cells() -> list[Cell]:
    """Return the table's cells."""
    found = []
    for name, reading, rest in ROW.findall(DOC.read_text()):
        values = [value.strip() for value in rest.split("|")]
        found += [Cell(name or reading, column, value) for column, value in zip(COLUMNS, values, strict=True)]
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """A gateway that knows people, with a job and a sweep of each owner, and what each cell changes."""
    of_owners: list[AnyEvent] = []
    for owner, team in TEAM.items():
        job = spec(user=owner, team=team, name=f"secret-{owner}", env={"TOKEN": owner}, params={"lr": 1})
        of_owners.append(submitted(f"j-{owner}", user=owner, team=team, name=f"secret-{owner}", digest=owner))
        sweep = sweep_spec(id=f"s-{owner}", name=f"secret-{owner}", job=job)
        of_owners.append(SweepSubmitted(sweep_id=f"s-{owner}", spec=sweep, at_s=NOW_S))
    of_cells = [fact for cell in cells() for fact in targets(cell)]
    folder = str(tmp_path_factory.mktemp("notify"))
    settings = GatewaySettings(
        append_timeout_s=PATIENCE_S, query_timeout_s=PATIENCE_S, notify_dir=folder, notify_refused=()
    )
    facts = (joined("n1", fast=4), *PEOPLE, *of_owners, *of_cells)
    with webhook() as hook:
        for column in COLUMNS:
            TargetFolder(folder).write(f"test_notification-{column}", f"json://127.0.0.1:{hook.port}")
        async with MemoryBus() as bus, gateway(bus, *facts, settings=settings) as running:
            yield running


def targets(cell: Cell) -> list[AnyEvent]:
    """Return what a cell's request is about and changes, so that no cell finds what another has left."""
    name, owner = f"{cell.request}-{cell.column}", WHOSE[cell.column]
    job = submitted(name, user=owner, team=TEAM[owner], name="target")
    sweep = sweep_spec(id=name, name="target", job=spec(user=owner, team=TEAM[owner]))
    found: dict[str, list[AnyEvent]] = {
        "cancel": [job],
        "hold": [job],
        "release": [job, JobHeld(job_id=name, at_s=NOW_S)],
        "extend": [job],
        "enter": [job, placed(name)],
        "bulk": [job],
        "cancel_sweep": [SweepSubmitted(sweep_id=name, spec=sweep, at_s=NOW_S)],
        "drain": [joined(name)],
        "resume": [joined(name), NodeDrained(node_id=name, at_s=NOW_S)],
        "remove": [joined(name), NodeLeft(node_id=name, at_s=NOW_S)],
        **{one: [NotificationRuleSet(user=owner, rule=name, target="hook", at_s=NOW_S)] for one in _OF_RULES},
        "remove_user": [UserSet(user=name, at_s=NOW_S)],
        "add_allocation": [],
        **{one: [_allocation(name)] for one in ("remove_allocation", "pause_allocation")},
        "resume_allocation": [_allocation(name), AllocationPaused(name=name, at_s=NOW_S)],
        "unreserve": [
            ReservationMade(
                pool="lab", reservation_id=name, team="vision", gpus=1, from_s=NOW_S, until_s=4e9, at_s=NOW_S
            )
        ],
    }
    return found.get(cell.request, [])


def _allocation(name: str) -> AllocationAdded:
    return AllocationAdded(name=name, spec=AllocationSpec(provider="local"), at_s=NOW_S)


def as_user(shared: Gateway, name: str) -> Gateway:
    """Return the same gateway as a person reaches it."""
    return Gateway(MemoryBus(shared.bus.server, user=name), shared.shell)  # type: ignore[attr-defined]


def body_of(cell: Cell) -> Any:
    request, owner = cell.request, WHOSE[cell.column]
    about: dict[str, Any] = {
        **dict.fromkeys(("submit", "dryrun"), spec(user=owner)),
        "submit_all": {"specs": [spec(user=owner)]},
        "upload": {"user": owner},
        "upload_parts": msgspec.msgpack.encode(PartsRequest(parts=(b"x",), user=owner)),
        "bulk": {"verb": "hold", "ids": [f"{request}-{cell.column}"]},
        "extend": {"id": f"{request}-{cell.column}", "limit_s": 60.0},
        "enter": {"id": f"{request}-{cell.column}", "session_id": "5e" * 8},
        "tune": sweep_spec(job=spec(user=owner)),
        "notify": {"url": "json://127.0.0.1", "on": ["failed"], "id": f"j-{owner}"},
        "sweep": {"id": f"s-{owner}"},
        **{key: {"id": f"{request}-{cell.column}"} for key in (*_OF_TARGETS, *_OF_RULES)},
        "reserve": {"team": "vision", "gpus": 1, "until_s": 4e9},
        "add_allocation": {"name": f"new-{cell.column}", "spec": {"provider": "local"}},
        "try_pilot": {"name": f"new-{cell.column}", "spec": {"provider": "local"}},
        "policy": {"pool": "default", "set": {"order": "fifo" if cell.column == "admin" else "srtf"}},
        "set_user": {"user": f"new-{cell.column}", "role": "user", "teams": ["vision"]},
        **dict.fromkeys(_OF_ALL, b""),
    }
    return about.get(request, {"id": f"j-{owner}"})


_OF_TARGETS = (
    "cancel", "hold", "release", "cancel_sweep", "drain", "resume", "remove", "remove_user", "unreserve",
    "remove_allocation", "pause_allocation", "resume_allocation",
)  # fmt: skip
_OF_RULES = ("remove_notification", "test_notification")
_OF_ALL = (
    "jobs", "queue", "sweeps", "nodes", "devices", "aggregation", "moment", "status", "stats", "streams", "policies",
    "allocations",
    "schema", "whoami", "notifications", "users", "rejected", "usage", "timeline",
)  # fmt: skip


async def outcome(shared: Gateway, cell: Cell) -> str:
    """Return what somebody gets: ``yes``, ``no`` or an outline; else the error, which the table expects nowhere."""
    who, owner = WHO[cell.column], WHOSE[cell.column]
    person, request = as_user(shared, who), cell.request
    if request.startswith("read"):
        return await _read(shared, who, owner, request)
    kind = subjects.command if request in _COMMANDS else subjects.query
    try:
        answer = await person._ask(kind(request), body_of(cell))
    except ServiceError as error:
        if request == "try_pilot" and error.code == 503:
            return "yes"  # it would be asked of the allocator, and none runs here
        return "no" if error.code == 403 else f"{error.code}: {error}"
    return _said(request, owner, answer)


def _said(request: str, owner: str, answer: dict[str, Any]) -> str:
    if request in {"submit_all", "bulk"}:
        return "no" if [one.get("code", 0) for one in answer["answers"]] == [403] else "yes"
    if request in {"jobs", "queue", "sweeps"}:
        found = answer["jobs" if request == "queue" else request]
        shown = [one for one in found if one["id" if request == "sweeps" else "user"] in {owner, f"s-{owner}"}]
        return "yes" if shown and all(one["name"] for one in shown) else "outline"
    if request == "usage":
        return "yes" if owner in {row.get("name") for row in answer["rows"]} else "outline"
    if request in _COMMANDS - {"submit", "tune", "enter", "upload", "upload_parts", "test_notification"}:
        return "yes" if answer["changed"] else f"nothing was changed: {answer}"
    return "yes"


async def _read(shared: Gateway, who: str, owner: str, request: str) -> str:
    subject = subjects.job(f"j-{owner}") if request == "read the log" else subjects.logs(f"j-{owner}")
    async with FoldFollower(shared.bus, machine.decider(GatewaySettings())) as live:
        await live.caught_up()
        try:
            await sight.check_read(shared.bus, live, caller(live.state.users, "", who), subject)
        except RequestRefused as error:
            return "no" if error.code == 403 else str(error)
    return "yes"


_COMMANDS = frozenset(
    {
        "submit",
        "submit_all",
        "upload",
        "upload_parts",
        "bulk",
        "tune",
        "cancel",
        "hold",
        "release",
        "extend",
        "enter",
        "cancel_sweep",
        "drain",
        "resume",
        "remove",
        "policy",
        "reserve",
        "unreserve",
        "add_allocation",
        "remove_allocation",
        "pause_allocation",
        "resume_allocation",
    }
    | {"set_user", "remove_user", "notify", "remove_notification", "test_notification"}
)


async def test_the_table_has_every_request(shared: Gateway) -> None:
    served = {subject.rpartition(".")[2] for one in shared.bus.server.hub.instances for subject in one.handlers}  # type: ignore[attr-defined]
    in_table = {cell.request for cell in cells() if not cell.request.startswith("read")}
    assert in_table == served - {"ready", "live", "metrics"}
    assert set(LEAST) <= in_table
    assert len(cells()) == 6 * (len(in_table) + 2)


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: f"{cell.request}-{cell.column}")
async def test_each_cell_of_the_table(shared: Gateway, cell: Cell) -> None:
    assert await outcome(shared, cell) == cell.expected


async def test_a_job_is_its_submitters_in_the_first_of_their_teams_whatever_it_says(shared: Gateway) -> None:
    uma = as_user(shared, "uma")
    for said, team in (({}, "vision"), ({"user": "uma"}, "vision"), ({"team": "speech"}, "speech")):
        answer = await uma.command("submit", spec(**said))
        job = (await uma.query("job", {"id": answer["id"]}))["job"]
        assert (job["user"], job["team"]) == ("uma", team)
    assert await refusal(uma.command("submit", spec(user="root"))) == (
        403,
        "$.user: uma cannot submit as root; leave it out, or ask an operator to",
    )
    code, said = await refusal(uma.command("submit", spec(team="robots")))
    assert (code, "uma is not in team robots, but in vision, speech" in said) == (403, True)


async def test_an_operator_submits_for_others_and_a_command_says_who_gave_it(shared: Gateway) -> None:
    oskar = as_user(shared, "oskar")
    job_id = (await oskar.command("submit", spec(user="bob")))["id"]
    await oskar.command("cancel", {"id": job_id, "by": "bob", "reason": "x"})
    story = await oskar.query("story", {"id": job_id})
    assert any("cancelled by oskar" in line["text"] for line in story["lines"])


async def test_a_sweeps_trials_are_its_submitters(shared: Gateway) -> None:
    uma = as_user(shared, "uma")
    sweep_id = (await uma.command("tune", sweep_spec()))["id"]
    assert {one["id"] for one in (await uma.query("sweeps"))["sweeps"]} >= {sweep_id, "s-uma", "s-tom"}
    assert await refusal(as_user(shared, "bob").query("sweep", {"id": sweep_id}))


async def test_a_dry_run_refuses_the_job_that_a_submission_refuses(shared: Gateway) -> None:
    uma = as_user(shared, "uma")
    for fields, expected in (
        ({"begins_from": "j-bob"}, "$.begins_from: job j-bob is bob's; expected a job of the same user"),
        ({"begins_from": "gone"}, "$.begins_from: job gone is not there; expected a job of the same user"),
        ({"parent": "s-uma"}, "$.parent: trials are submitted by the sweep s-uma itself"),
    ):
        submission = await refusal(uma.command("submit", spec(**fields)))
        assert submission[1].startswith(expected)
        assert await refusal(uma.query("dryrun", spec(**fields))) == submission
    assert (await uma.query("dryrun", spec(begins_from="j-uma")))["cause"] != "never_fits"


async def test_what_the_inbox_holds_is_its_submitters(shared: Gateway) -> None:
    server = shared.bus.server  # type: ignore[attr-defined]
    await MemoryBus(server, user="uma").submit(subjects.INBOX_JOBS, b'{"id": "in-uma", "name": "a", "command": ["x"]}')
    forged = b'{"id": "forged", "name": "a", "command": ["x"], "user": "bob"}'
    await MemoryBus(server, user="uma").submit(subjects.INBOX_JOBS, forged)
    await MemoryBus(server, user="nobody").submit(subjects.INBOX_JOBS, b'{"name": "a", "command": ["x"]}')
    ada = as_user(shared, "ada")
    while len((await ada.query("rejected"))["rejected"]) < 2:
        pass  # each query lets the gateway go on
    assert (await ada.query("job", {"id": "in-uma"}))["job"]["user"] == "uma"
    reasons = " ".join(one["reason"] for one in (await ada.query("rejected"))["rejected"])
    assert "uma cannot submit as bob" in reasons
    assert "nobody is no user of this cluster" in reasons


async def test_a_name_cannot_be_guessed_by_filtering_the_list(shared: Gateway) -> None:
    uma = as_user(shared, "uma")
    assert (await uma.query("jobs", {"name": "secret-bob"}))["total"] == 0
    assert (await uma.query("jobs", {"name": "secret-t*"}))["total"] == 1


async def test_people_come_and_go_while_the_gateway_runs() -> None:
    async with MemoryBus() as bus, gateway(bus, joined(), settings=GatewaySettings(owner="olga")) as running:
        olga, new = as_user(running, "olga"), as_user(running, "new")
        assert (await refusal(new.query("nodes")))[0] == 403
        await olga.command("set_user", {"user": "new", "role": "viewer"})
        assert (await refusal(new.command("submit", spec())))[1].startswith("submit is for users and above, and new is")
        await olga.command("set_user", {"user": "new", "role": "user", "teams": ["a"]})
        job_id = (await new.command("submit", spec()))["id"]
        assert (await olga.query("users"))["users"] == [
            {"name": "new", "role": "user", "teams": ["a"], "valid_from_s": 0.0, "is_owner": False, **UNLIMITED},
            {"name": "olga", "role": "admin", "teams": [], "valid_from_s": 0.0, "is_owner": True, **UNLIMITED},
        ]
        assert "1 open job of theirs goes on" in (await olga.command("remove_user", {"id": "new"}))["message"]
        assert (await refusal(new.command("cancel", {"id": job_id})))[0] == 403
        await olga.command("cancel", {"id": job_id})


async def test_nobody_is_called_as_a_services_login_is() -> None:
    """As for whom an identity provider names, in whatever case; an owner of such a name keeps it."""
    async with MemoryBus() as bus, gateway(bus, joined(), settings=GatewaySettings(owner="admin")) as running:
        admin = as_user(running, "admin")
        for name in ("gateway", "Matcher", "oidc", "issuer", "extension"):
            code, said = await refusal(admin.command("set_user", {"user": name}))
            assert (code, "a service's login is called" in said) == (400, True)
        assert (await admin.command("set_user", {"user": "admin", "revoke": True}))["changed"]
        assert (await admin.command("set_user", {"user": "gatekeeper"}))["changed"]
        assert (await refusal(admin.command("remove_user", {"id": "x"})))[1] == (
            "no user 'x'; there are 2, and none is called like that"
        )


async def test_nobody_locks_themselves_out_or_makes_themselves_more() -> None:
    ada = UserSet(user="ada", role="admin", at_s=NOW_S)
    async with MemoryBus() as bus, gateway(bus, ada) as running:
        person = as_user(running, "ada")
        assert (await refusal(person.command("remove_user", {"id": "ada"})))[0] == 409
        assert (await refusal(person.command("set_user", {"user": "ada", "role": "viewer"})))[0] == 409
        code, said = await refusal(person.command("remove_user", {"id": "ad"}))
        assert (code, "write the whole name" in said) == (404, True)


async def test_a_service_speaks_for_others_and_nobody_else_is_a_service() -> None:
    job = JobSpec(name="a", command=("x",), user="alice", team="vision")
    assert SERVICE.stamp(job) == job
    users = Users()
    users.apply(UserSet(user="alice", at_s=1.0))
    assert caller(users, "", "") == SERVICE
    assert caller(users, "", "alice") == Caller(name="alice", role="user")
    users.apply(UserRemoved(user="alice", at_s=2.0))
    for name in ("alice", " ", "*"):
        with pytest.raises(RequestRefused, match="is no user of this cluster"):
            caller(users, "", name)


async def test_a_workload_that_people_share_shows_its_figures_and_of_names_only_those_that_are_seen() -> None:
    same = {"digest": "same", "model": "mlp"}
    key = workload.key(spec(**same))
    sweep = sweep_spec(id="s-bob", name="bobs-sweep", job=spec(user="bob", team="robots", **same))
    facts = (
        *(submitted(f"j-{who}", user=who, team=team, name=f"of-{who}", **same) for who, team in TEAM.items()),
        submitted("j-other", user="bob", team="robots", name="hidden", digest="other", model="gpt"),
        SweepSubmitted(sweep_id="s-bob", spec=sweep, at_s=NOW_S),
        TrialsMeasured(
            at_s=NOW_S, sweep_id="s-bob", key=key, alpha=1.2, beta=1.4, packing=3, widest=2, overhead_s=2.5, saves=True
        ),
    )
    async with MemoryBus() as bus, gateway(bus, joined(), *PEOPLE, *facts) as running:
        uma, bob, oskar = (as_user(running, who) for who in ("uma", "bob", "oskar"))
        seen = await uma.query("profile", {"id": "j-uma"})
        assert (seen["workload"], seen["jobs"], seen["names"]) == (key, 2, ["of-tom", "of-uma"])
        assert (seen["trials"]["alpha"], seen["trials"].get("sweep_id")) == (1.2, "")
        assert (await bob.query("profile", {"id": key}))["trials"]["sweep_id"] == "s-bob"
        assert (await oskar.query("profile", {"id": key}))["jobs"] == 3
        for named in ("j-bob", "s-bob"):
            assert (await refusal(uma.query("profile", {"id": named})))[0] == 403
        hidden = workload.key(spec(digest="other", model="gpt"))
        for named in ("of-bob", "bobs-sweep", "hidden", "hiddem", hidden, hidden[:6]):
            code, said = await refusal(uma.query("profile", {"id": named}))
            assert (
                code,
                [word for word in ("of-bob", "bobs", "hidden", hidden) if word in said.partition(";")[2]],
            ) == (
                404,
                [],
            )


async def test_a_taken_id_says_nothing_of_what_it_belongs_to(shared: Gateway) -> None:
    uma = as_user(shared, "uma")
    for name, body in (("submit", spec(id="j-bob")), ("tune", sweep_spec(id="s-bob"))):
        code, said = await refusal(uma.command(name, body))
        assert (code, said.partition(";")[0]) == (409, f"the id {body.id} is taken")
    for taken in ("s-bob", "n1", "default", "bob"):
        code, said = await refusal(uma.command("submit", spec(id=taken)))
        assert (code, "is that of something else here" in said) == (409, True)
    for body in (spec(parent="s-bob"), spec(id="s-bob-1")):
        assert await refusal(uma.command("submit", body))


async def test_an_id_that_names_several_things_shows_of_each_what_may_be_seen() -> None:
    """Ids are free when they are chosen; nodes and people of the same name come later."""
    later = (joined("n-later", fast=1), UserSet(user="j-uma", role="admin", at_s=NOW_S))
    jobs = (submitted("j-uma", user="uma"), submitted("n-later", user="bob"))
    async with MemoryBus() as bus, gateway(bus, *PEOPLE, *jobs, *later) as running:
        uma, oskar = as_user(running, "uma"), as_user(running, "oskar")
        for who, wanted, kinds in (
            (uma, "j-uma", {"job.submitted.v1"}),
            (oskar, "j-uma", {"job.submitted.v1", "user.set.v1"}),
            (uma, "n-later", {"node.joined.v2"}),
            (oskar, "n-later", {"job.submitted.v1", "node.joined.v2"}),
        ):
            answer = await who.query("events", {"id": wanted})
            assert {one["type"] for one in answer["events"]} == kinds
        async with FoldFollower(bus, machine.decider(GatewaySettings())) as live:
            await live.caught_up()
            for subject in (subjects.job("n-later"), subjects.logs("n-later"), subjects.node("n-later")):
                with pytest.raises(RequestRefused, match="for operators"):
                    await sight.check_read(bus, live, caller(live.state.users, "", "uma"), subject)


async def test_somebody_who_comes_back_needs_a_new_login() -> None:
    async with MemoryBus() as bus, gateway(bus, joined(), settings=GatewaySettings(owner="olga")) as running:
        olga = as_user(running, "olga")
        await olga.command("set_user", {"user": "new"})
        await olga.command("remove_user", {"id": "new"})
        await olga.command("set_user", {"user": "new"})
        (new, _) = (await olga.query("users"))["users"]
        assert new["valid_from_s"] > NOW_S


async def test_names_of_others_are_no_suggestions(shared: Gateway) -> None:
    uma = as_user(shared, "uma")
    for wanted in ("secret-bob", "secret-bo"):
        for query in ("job", "sweep"):
            code, said = await refusal(uma.query(query, {"id": wanted}))
            assert (code, "its id is" in said, "secret-bob" in said.partition(";")[2]) == (404, False, False)
        for command in ("cancel", "hold", "release", "cancel_sweep"):
            code, said = await refusal(uma.command(command, {"id": wanted}))
            assert (code, "its id is" in said, "secret-bob" in said.partition(";")[2]) == (404, False, False)


async def test_a_revocation_that_is_named_happens_once_and_not_before_a_later_one() -> None:
    async with MemoryBus() as bus, gateway(bus, joined(), settings=GatewaySettings(owner="olga")) as running:
        olga = as_user(running, "olga")
        for again in (True, False):
            answer = await olga.command("set_user", {"user": "new", "revoke": True, "revocation_s": NOW_S + 1e6})
            assert answer["changed"] == again
        code, said = await refusal(olga.command("set_user", {"user": "new", "revoke": True, "revocation_s": NOW_S}))
        assert (code, "revoked meanwhile" in said) == (409, True)
        await olga.command("set_user", {"user": "new", "revoke": True})
        (new, _) = (await olga.query("users"))["users"]
        assert new["valid_from_s"] > NOW_S + 1e6
        assert (await refusal(olga.command("set_user", {"user": "new", "revocation_s": NOW_S + 2e6})))[0] == 400
