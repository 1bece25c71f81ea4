"""The pages of devices, queue and jobs, over real HTTP, as a gateway on the same bus knows the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import msgspec
import pytest
import pytest_asyncio
from dashboards import RunningDashboard, WebVisitor, dashboard, first
from gateway_cases import NOW_S, Gateway, gateway, joined, placed, started, submitted

from penstock_bus.memory import MemoryBus
from penstock_dashboard.application import COOKIE
from penstock_log import DeviceDrained, DeviceFailed, PolicySet, ReservationMade, Setting, UserSet, subjects
from penstock_log.device_samples import DeviceReading, DeviceSample, DevicesSampled

PEOPLE = (
    UserSet(at_s=0.0, user="alice", role="user", teams=("vision",)),
    UserSet(at_s=0.0, user="bob", role="user", teams=("speech",)),
    UserSet(at_s=0.0, user="olga", role="operator"),
)


@pytest_asyncio.fixture
async def served(memory_bus: MemoryBus) -> AsyncIterator[Gateway]:
    async with gateway(memory_bus, joined("n1", fast=2), *PEOPLE) as running:
        yield running


@pytest_asyncio.fixture
async def site(served: Gateway) -> AsyncIterator[RunningDashboard]:
    async with dashboard(served.bus) as running:
        yield running


async def test_a_device_names_the_job_on_it_and_whose_it_is(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice", team="vision"), placed("j1"), started("j1"))
    visitor = await site.visitor()
    page = await visitor.get("/")
    assert page.status == 200
    assert "n1/fast0: j1 of alice, running" in page.text
    assert "n1/fast1: idle" in page.text
    assert page.rows["busy"] == "busy 1"


async def test_a_device_shows_how_busy_it_is_and_the_past_does_not(served: Gateway, site: RunningDashboard) -> None:
    seq = await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"))
    reading = DeviceReading(utilisation=0.72, memory_used_bytes=3 << 30, memory_total_bytes=16 << 30)
    device = DeviceSample(index=0, kind="fast", backend="emulated", reading=reading)
    sampled = DevicesSampled(node_id="n1", host="h", at_s=1.0, devices=(device,))
    visitor = await site.visitor()

    async def page() -> str:
        await served.bus.publish(subjects.devices("n1"), msgspec.json.encode(sampled))
        return (await visitor.get("/?color=use")).text

    await eventually_of(
        page, lambda text: "n1/fast0: j1 of alice, running; about 70% busy; 3.0 GiB of 16.0 GiB" in text
    )
    assert "busy" not in (await visitor.get(f"/?at={seq}")).text.partition("n1/fast0")[2]


async def eventually_of(look: Callable[[], Awaitable[str]], holds: Callable[[str], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds(await look()):  # noqa: ASYNC110 - the page is what is waited for
            await asyncio.sleep(0)


async def test_a_device_that_failed_says_why_and_counts_as_failed(served: Gateway, site: RunningDashboard) -> None:
    reason = "XID 79: <script>alert(1)</script>"
    await served.told(DeviceFailed(at_s=NOW_S, node_id="n1", index=1, code="xid 79", reason=reason))
    await served.told(submitted("j1", user="alice"), placed("j1"), started("j1"))
    await served.told(DeviceDrained(at_s=NOW_S, node_id="n1", index=0, reason="a loud fan"))
    page = await (await site.visitor()).get("/")
    assert "n1/fast1: failed: XID 79: &lt;script&gt;" in page.text
    assert "<script>alert" not in page.text
    assert "n1/fast0: j1 of alice, running; draining: a loud fan" in page.text
    assert page.text.count("cell off unfit") == 1
    assert (page.rows["failed"], page.rows["draining"]) == ("failed 1", "draining 1")


async def test_a_visitor_who_has_not_signed_in_sees_no_names(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice", name="secret-plan", model="huge"))
    page = await (await site.visitor()).get("/queue")
    assert page.rows["j1"].startswith("1 j1 alice")
    assert "secret-plan" not in page.text
    assert "huge" not in page.text


async def test_people_see_the_names_of_their_own_jobs_and_not_those_of_others(
    served: Gateway, site: RunningDashboard
) -> None:
    await served.told(
        submitted("j1", user="alice", name="hers"), submitted("j2", user="bob", name="his", team="speech")
    )
    page = await (await site.visitor("alice")).get("/queue")
    assert "j1 hers alice" in page.rows["j1"]
    assert "his" not in page.rows["j2"].split()


async def test_the_queue_is_in_rank_order_and_its_filters_are_in_the_address(
    served: Gateway, site: RunningDashboard
) -> None:
    for number in range(5):
        await served.told(submitted(f"j{number}", user=["alice", "bob"][number % 2], at_s=10.0 - number))
    visitor = await site.visitor("olga")
    page = await visitor.get("/queue")
    assert [key for key in page.rows if key[0] == "j"] == ["j4", "j3", "j2", "j1", "j0"]
    assert [key for key in (await visitor.get("/queue?user=bob")).rows if key[0] == "j"] == ["j3", "j1"]
    assert "1 to 2 of 5" in (await visitor.get("/queue?limit=2")).rows["pager"]


async def test_the_queue_has_the_quotas_reservations_and_classes_below_it(
    served: Gateway, site: RunningDashboard
) -> None:
    visitor = await site.visitor()
    assert (await visitor.get("/queue")).rows["no limits"] == "No pool has any."
    classes: dict[str, Setting] = {"class.urgent.weight": 10, "class.urgent.preempts": True, "class.night.weight": -5}
    limits: dict[str, Setting] = {"class.urgent.most_gpus": 1, "class.urgent.teams": ["vision"], "quota.vision": 2}
    await served.told(PolicySet(at_s=NOW_S, pool="default", settings={**classes, **limits}))
    made = ReservationMade(
        at_s=NOW_S,
        pool="default",
        reservation_id="nlp-1",
        team="nlp",
        gpus=2,
        from_s=NOW_S + 1000.0,
        until_s=NOW_S + 2000.0,
        reason="<script>alert(1)</script>",
        kind="fast",
    )
    await served.told(made, submitted("j1", priority_class="urgent"))
    page = await visitor.get("/queue")
    assert "<script>alert" not in page.text
    rows = [row for key, row in page.rows.items() if key.partition(" ")[0] in {"quota", "reservation", "class"}]
    assert [row.split(", from")[0] for row in rows] == [
        "default quota vision 2 devices of its own, with what is reserved for it now",
        "default reservation nlp-1 2 fast devices for nlp",
        "default class urgent weight 10, runs of lower classes make way, at most 1 device for each user, for vision "
        "only",
        "default class night weight -5, nobody makes way",
    ]
    assert "urgent" in page.rows["j1"]
    assert "urgent" in (await (await site.visitor("olga")).get("/jobs/j1")).text


async def test_what_changes_is_sent_to_a_page_that_is_open(served: Gateway, site: RunningDashboard) -> None:
    visitor = await site.visitor("olga")
    page = await visitor.get("/queue")
    version = page.text.partition('data-version="')[2].partition('"')[0]
    await served.told(submitted("j1", user="alice"))
    update = await first(visitor.updates(f"/live/queue?version={version}"), lambda update: update.get("regions"))
    assert update["regions"]["rows"]["order"] == ["j1"]
    assert "alice" in update["regions"]["rows"]["put"]["j1"]
    assert not update.get("whole")


async def test_a_browser_that_comes_back_with_another_version_gets_everything(
    served: Gateway, site: RunningDashboard
) -> None:
    await served.told(submitted("j1", user="alice"))
    visitor = await site.visitor("olga")
    update = await first(visitor.updates("/live/queue?version=7"), lambda update: "regions" in update)
    assert update["whole"]
    assert list(update["regions"]["rows"]["put"]) == ["j1"]


async def test_chosen_jobs_are_cancelled_with_one_form(served: Gateway, site: RunningDashboard) -> None:
    await served.told(*(submitted(f"j{number}", user="alice") for number in range(3)))
    visitor = await site.visitor("alice")
    await visitor.get("/queue")
    fields = {"token": visitor.form_token, "verb": "cancel", "id": ["j0", "j2"], "back": "/queue?user=alice"}
    answer = await visitor.post("/act", fields)
    assert (answer.status, answer.headers["location"]) == (303, "/queue?user=alice")
    assert "2 of 2 jobs changed" in (await visitor.get("/queue")).text
    states = {job["id"]: job["state"] for job in (await served.query("jobs"))["jobs"]}
    assert states == {"j0": "CA", "j1": "PD", "j2": "CA"}


async def test_all_jobs_that_match_the_filter_are_held_whether_shown_or_not(
    served: Gateway, site: RunningDashboard
) -> None:
    await served.told(*(submitted(f"j{number}", user=["alice", "bob"][number % 2]) for number in range(6)))
    olga = await site.visitor("olga")
    await olga.get("/queue?user=bob&limit=1")
    await olga.post("/act", {"token": olga.form_token, "verb": "hold", "all": "1", "back": "/queue?user=bob&limit=1"})
    held = {job["id"] for job in (await served.query("jobs"))["jobs"] if job["held"]}
    assert held == {"j1", "j3", "j5"}
    assert "3 of 3 jobs changed" in (await olga.get("/queue")).text


async def test_before_all_that_match_are_cancelled_it_is_asked_how_many_and_which(
    served: Gateway, site: RunningDashboard
) -> None:
    await served.told(*(submitted(f"j{number}", user=["alice", "bob"][number % 2]) for number in range(600)))
    await served.told(submitted("runs", user="bob"), placed("runs"), started("runs"))
    olga = await site.visitor("olga")
    await olga.get("/queue")

    async def asked(back: str, visitor: WebVisitor = olga) -> dict[str, str]:
        form = {"token": visitor.form_token, "verb": "cancel", "all": "1", "back": back}
        found: dict[str, str] = msgspec.json.decode((await visitor.post("/act/preview", form)).text)
        return found

    assert await asked("/queue?user=bob&limit=1") == {"question": "Cancel 300 waiting jobs (user bob)?"}
    assert await asked("/queue") == {"question": "Cancel 600 waiting jobs (all there are)?"}
    assert await asked("/queue?text=<b>") == {"said": "There is no waiting job to cancel (with “<b>”)."}
    assert "by their cause" in (await asked("/queue?cause=held"))["said"]
    states = {job["state"] for job in (await served.query("jobs"))["jobs"] if job["id"] != "runs"}
    assert states == {"PD"}
    await olga.post("/act", {"token": olga.form_token, "verb": "cancel", "all": "1", "back": "/queue?user=bob"})
    assert "cancel: 300 of 300 jobs changed (user bob)" in (await olga.get("/queue")).text


async def test_the_question_about_all_says_which_would_be_refused(served: Gateway, site: RunningDashboard) -> None:
    await served.told(*(submitted(f"j{number}", user=["alice", "bob"][number % 2]) for number in range(3)))
    bob, anybody = await site.visitor("bob"), await site.visitor()
    await bob.get("/queue")
    form = {"token": bob.form_token, "verb": "cancel", "all": "1", "back": "/queue"}
    question = msgspec.json.decode((await bob.post("/act/preview", form)).text)["question"]
    assert question.startswith(
        "Cancel 1 waiting job (all there are)? 2 jobs that match would be refused: job j0 is alice"
    )
    assert (await anybody.post("/act/preview", form)).status == 403


async def test_a_form_leads_back_to_this_site_alone(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice"))
    alice = await site.visitor("alice")
    await alice.get("/queue")
    for back in ("https://elsewhere.example/", "//elsewhere.example", "/\\elsewhere.example", ""):
        fields = {"token": alice.form_token, "verb": "hold", "id": "j1", "back": back}
        assert (await alice.post("/act", fields)).headers["location"] == "/"


async def test_nobody_acts_on_the_jobs_of_others(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice"))
    bob = await site.visitor("bob")
    await bob.get("/queue")
    await bob.post("/act", {"token": bob.form_token, "verb": "cancel", "id": "j1"})
    assert "job j1 is alice&#39;s, and bob is no operator" in (await bob.get("/queue")).text
    assert (await served.query("job", {"id": "j1"}))["job"]["state"] == "PD"


async def test_a_form_without_the_session_s_token_does_nothing(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="alice"))
    alice, anybody = await site.visitor("alice"), await site.visitor()
    await alice.get("/queue")
    for visitor, token in ((alice, "forged"), (alice, ""), (anybody, alice.form_token)):
        answer = await visitor.post("/act", {"token": token, "verb": "cancel", "id": "j1"})
        assert answer.status == 403
    sent_by_another_site = await alice.post(
        "/act", {"token": alice.form_token, "verb": "cancel", "id": "j1"}, Sec_Fetch_Site="cross-site"
    )
    assert sent_by_another_site.status == 403
    assert (await served.query("job", {"id": "j1"}))["job"]["state"] == "PD"


async def test_a_key_signs_in_once(site: RunningDashboard) -> None:
    visitor = await site.visitor()
    key = await site.key("alice")
    assert (await visitor.sign_in(key)).status == 303
    other = await site.visitor()
    again = await other.sign_in(key)
    assert again.status == 403
    assert "too old or was used" in again.text
    assert COOKIE not in other.cookies


async def test_the_page_of_a_key_says_as_whom_it_signs_in_and_sends_nothing_by_itself(site: RunningDashboard) -> None:
    page = await (await site.visitor()).get(await site.key("alice"))
    assert "Sign in as alice" in page.text
    assert "data-submit" not in page.text
    assert ".submit()" not in (await (await site.visitor()).get("/static/live.js")).text


async def test_a_key_is_taken_only_from_a_form_that_the_same_browser_was_shown(site: RunningDashboard) -> None:
    attacker, victim = await site.visitor(), await site.visitor()
    path = await site.key("mallory")
    key = path.partition("?key=")[2]
    shown = (await attacker.get(path)).text.partition('name="browser" value="')[2].partition('"')[0]
    await victim.get(await site.key("alice"))
    for token in ("", shown):
        answer = await victim.post("/sign-in", {"key": key, "browser": token})
        assert (answer.status, COOKIE in victim.cookies) == (403, False)
        assert "was not shown to this browser" in answer.text
    assert (await attacker.post("/sign-in", {"key": key, "browser": shown})).status == 303


@pytest.mark.parametrize("header", [{"Sec_Fetch_Site": "cross-site"}, {"Origin": "https://elsewhere.example"}])
async def test_a_key_that_another_site_sends_opens_no_session(site: RunningDashboard, header: dict[str, str]) -> None:
    visitor, path = await site.visitor(), await site.key("alice")
    token = (await visitor.get(path)).text.partition('name="browser" value="')[2].partition('"')[0]
    fields = {"key": path.partition("?key=")[2], "browser": token}
    assert (await visitor.post("/sign-in", fields, **header)).status == 403
    assert (await visitor.post("/sign-in", fields, Origin=site.url)).status == 303


async def test_a_key_that_is_none_is_told_before_anything_is_sent(site: RunningDashboard) -> None:
    answer = await (await site.visitor()).get("/sign-in?key=forged.key")
    assert (answer.status, "too old or was used" in answer.text) == (403, True)


async def test_a_session_ends_when_its_person_s_logins_are_revoked(served: Gateway, site: RunningDashboard) -> None:
    alice = await site.visitor("alice")
    await served.told(UserSet(at_s=0.0, user="alice", role="user", valid_from_s=4e9))
    page = await alice.get("/queue")
    assert "Sign in" in page.text
    assert "Sign out" not in page.text


async def test_a_key_of_before_a_revocation_opens_no_session_that_counts(
    served: Gateway, site: RunningDashboard
) -> None:
    visitor, key = await site.visitor(), await site.key("alice")
    revoked_s = float(await served.bus.now_s()) + 0.001
    await served.told(UserSet(at_s=0.0, user="alice", role="user", valid_from_s=revoked_s))
    assert (await visitor.sign_in(key)).status == 303
    assert "Sign out" not in (await visitor.get("/queue")).text


async def test_somebody_who_was_removed_sees_what_anybody_sees(served: Gateway, site: RunningDashboard) -> None:
    stranger = await site.visitor("mallory")  # whom the server lets in, and the log does not know
    page = await stranger.get("/queue")
    assert "Sign in" in page.text


async def test_signing_out_forgets_the_session(site: RunningDashboard) -> None:
    alice = await site.visitor("alice")
    await alice.get("/")
    answer = await alice.post("/sign-out", {"token": alice.form_token})
    assert answer.status == 303
    assert "Sign out" not in (await alice.get("/")).text


async def test_a_copy_of_a_session_that_was_signed_out_counts_no_more(
    site: RunningDashboard,
) -> None:
    alice, other = await site.visitor("alice"), await site.visitor("alice")
    copy = WebVisitor(site.url, dict(alice.cookies))
    await alice.get("/")
    assert "Sign out" in (await copy.get("/queue")).text
    async with aclosing(copy.updates("/live/queue")) as updates:
        await anext(updates)
        await alice.post("/sign-out", {"token": alice.form_token})
        told = await first(updates, lambda update: update.get("error"))
    assert "your session has ended" in told["error"]
    assert "Sign out" not in (await copy.get("/queue")).text
    assert "Sign out" in (await other.get("/queue")).text


async def test_a_dashboard_may_be_closed_to_who_has_not_signed_in(served: Gateway) -> None:
    async with dashboard(served.bus, anonymous=False) as site:
        closed = await (await site.visitor()).get("/queue")
        assert closed.status == 401
        assert "penstock dashboard" in closed.text
        live = await (await site.visitor()).get("/live/queue")
        assert live.status == 401
        assert (await (await site.visitor("alice")).get("/queue")).status == 200


async def test_a_page_that_is_not_there_has_its_bar_for_who_may_see_the_log_and_for_nobody_else(
    served: Gateway,
) -> None:
    await served.told(submitted("j1"))
    async with dashboard(served.bus, anonymous=False) as site:
        for path, refused in (("/nothing", 404), ("/jobs/nothing", 401)):
            answer = await (await site.visitor("alice")).get(path)
            assert (answer.status, 'id="slider"' in answer.text) == (404, True), path
            closed = await (await site.visitor()).get(path)
            assert (closed.status, 'id="moment"' in closed.text) == (refused, False), path


async def test_an_address_that_asks_for_nonsense_is_told_so(site: RunningDashboard) -> None:
    visitor = await site.visitor()
    for path, status in (("/queue?limit=0", 400), ("/queue?offset=x", 400), ("/?at=yesterday", 400), ("/nothing", 404)):
        answer = await visitor.get(path)
        assert answer.status == status, path
        assert "Traceback" not in answer.text


async def test_an_address_with_two_slashes_leads_nowhere_else(site: RunningDashboard) -> None:
    answer = await (await site.visitor()).get("//elsewhere.example/x")
    assert answer.status == 404
    assert 'href="//' not in answer.text


async def test_times_beyond_all_dates_are_no_failure(site: RunningDashboard) -> None:
    visitor = await site.visitor()
    for path in ("/timeline?since=999999999w", "/users?since=999999999w", "/timeline?since=1&until=999999999999"):
        assert (await visitor.get(path)).status in {200, 400}, path


async def test_what_never_changes_is_not_followed(site: RunningDashboard) -> None:
    visitor = await site.visitor()
    assert (await visitor.get("/live/queue?at=1")).status == 400
    assert (await visitor.get("/live/users?since=all")).status == 404
    assert (await visitor.get(f"/live/?at=1&version={'9' * 5000}")).status == 400


async def test_hostile_words_are_shown_and_do_nothing(served: Gateway, site: RunningDashboard) -> None:
    await served.told(submitted("j1", user="<script>alert(1)</script>", team="\x1b[31m\u202e"))
    page = await (await site.visitor("olga")).get("/queue")
    assert "<script>alert" not in page.text
    assert "&lt;script&gt;alert" in page.text
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text


async def test_pages_tell_browsers_to_run_nothing_from_elsewhere(site: RunningDashboard) -> None:
    answer = await (await site.visitor()).get("/")
    assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
    assert 'style="' not in answer.text
    assert "onclick" not in answer.text


async def test_a_page_says_so_where_no_gateway_answers(memory_bus: MemoryBus) -> None:
    async with dashboard(memory_bus) as site:
        answer = await (await site.visitor()).get("/")
    assert answer.status == 503
    assert "no gateway runs" in answer.text


async def test_a_page_of_the_past_is_not_live(served: Gateway, site: RunningDashboard) -> None:
    seq = await served.told(submitted("j1", user="alice"))
    await served.told(submitted("j2", user="alice"))
    page = await (await site.visitor("olga")).get(f"/queue?at={seq}")
    assert "j1" in page.rows
    assert "j2" not in page.rows
    assert "data-live" not in page.text
    assert "Back to now" in page.text


async def test_a_page_that_is_open_shows_no_more_once_its_person_s_logins_are_revoked(
    served: Gateway, site: RunningDashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_dashboard.gateway_port._CHECKED_S", 0.05)
    alice = await site.visitor("alice")
    updates = alice.updates("/live/queue?version=0")
    async with aclosing(updates):
        await anext(updates)
        await served.told(UserSet(at_s=0.0, user="alice", role="user", valid_from_s=4e9))
        update = await first(updates, lambda update: update.get("error"))
    assert "your session has ended" in update["error"]
