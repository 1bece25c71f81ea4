"""`penstock top` by its keys: a person looks at a real gateway and acts on it."""

from __future__ import annotations

import msgspec
import pytest
from gateway_cases import NOW_S, ended, joined, placed, preempted, started, waits
from top_screens import TopScreen, job, top_screen

from penstock_log import NodeLeft, UserSet, Wait, subjects
from penstock_log.request_bodies import RunProgress

pytestmark = pytest.mark.slow
RUNNING = (joined(fast=2), job("runs"), placed("runs", 0), started("runs"))
ONE_OF_EACH = (
    *RUNNING,
    job("waits", name="large", gpus=4),
    job("bobs", user="bob", name="other"),
    job("over"),
    placed("over", 1),
    started("over"),
    ended("over"),
    waits(Wait(job_id="waits", cause="capacity", evidence="all 2 fast devices are held", remedy="ask for fewer")),
)


async def test_the_header_counts_jobs_and_devices_and_says_as_whom_one_came() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.sees("PD 2", "R 1", "CD 1", "fast 1 busy 1 idle", "ann (admin)")


async def test_an_empty_cluster_says_so() -> None:
    async with top_screen() as screen:
        await screen.sees("jobs none", "no devices", "0 to 0 of 0 jobs")
        await screen.press("j", "G", "enter", "c")
        await screen.sees("there is no job here")
        await screen.press("1")
        await screen.sees("there are no nodes")
        await screen.press("enter", "left", "right", "o", "d", "3")
        await screen.sees("no job is chosen")
        await screen.press("4")
        await screen.sees("no job is chosen")


async def test_nodes_that_left_in_good_order_are_not_among_the_devices() -> None:
    async with top_screen(joined("stays"), joined("gone"), NodeLeft(node_id="gone", at_s=NOW_S)) as screen:
        await screen.press("1")
        await screen.sees("stays")
        assert "gone" not in screen.text


async def test_what_runs_is_first_then_what_waits_then_what_has_ended() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.sees("over")
        shown = [line.split()[0] for line in screen.lines if line.split()[:1] and line.split()[0] in ORDER]
        assert shown == list(ORDER)


ORDER = ("runs", "bobs", "waits", "over")


async def test_a_waiting_job_shows_its_cause_in_the_queue() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.sees("(capacity)")


async def test_words_filter_while_they_are_typed() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.press("slash")
        await screen.type("bo")
        await screen.sees("bobs", "only with 'bo'")
        await screen.sees_no("runs", "waits")
        await screen.press("enter")
        await screen.sees("1 to 1 of 1 job,")
        await screen.press("escape")
        await screen.sees("runs", "waits")


@pytest.mark.parametrize("typed", ["s9", "c9", "q9", "25", "s/c"])
async def test_what_is_typed_at_once_after_the_slash_is_the_filter_and_no_command(typed: str) -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.sees("over")
        order = screen.app.queue.order
        screen.type_at_once("slash", *typed)
        await screen.sees(f"only with '{typed}'", "0 to 0 of 0 jobs")
        assert screen.app.typed.value == typed
        assert (screen.app.queue.order, screen.app.pane, len(screen.app.screen_stack)) == (order, "queue", 1)


async def test_keys_before_the_slash_are_done_first() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.sees("over")
        order = screen.app.queue.order
        screen.type_at_once("1", "2", "s", "slash", *"bob")
        await screen.sees("only with 'bob'", "1 to 1 of 1 job")
        assert screen.app.queue.order != order


async def test_what_is_typed_at_once_after_escape_are_commands_again() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.press("slash")
        await screen.type("zz")
        await screen.press("escape")
        screen.type_at_once("1")
        await screen.refreshed()
        assert screen.app.pane == "devices"


async def test_a_filter_may_name_a_state_and_a_user_in_any_order() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.press("slash")
        await screen.type("pd ANN")
        await screen.press("enter")
        await screen.sees("waits")
        await screen.sees_no("runs", "bobs", "over")


async def test_escape_while_typing_takes_the_filter_back() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.press("slash")
        await screen.type("nothing-has-this")
        await screen.sees("0 to 0 of 0 jobs")
        await screen.press("escape")
        await screen.sees("runs", "bobs", "over")
        assert screen.app.is_running


async def test_u_shows_mine_or_everybodys_jobs() -> None:
    async with top_screen(*ONE_OF_EACH, job("mine2")) as screen:
        await screen.press("u")
        await screen.sees("of ann")
        await screen.sees_no("bobs")
        await screen.press("u")
        await screen.sees("bobs")


async def test_t_goes_over_the_groups_of_states() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.press("t")
        await screen.sees("only open")
        await screen.sees_no("over")
        await screen.press("t")
        await screen.sees("only running")
        await screen.sees_no("waits")
        await screen.press("t", "t")
        await screen.sees("only ended")
        await screen.sees_no("runs ")


async def test_s_sorts_by_the_next_column_and_capital_s_the_other_way_round() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.press("s")
        await screen.sees("ID▲")
        await screen.refreshed()
        assert first_ids(screen) == sorted(ORDER)
        await screen.press("S")
        await screen.sees("ID▼")
        await screen.refreshed()
        assert first_ids(screen) == sorted(ORDER, reverse=True)


def first_ids(screen: TopScreen) -> list[str]:
    return [line.split()[0] for line in screen.lines if line.split()[:1] and line.split()[0] in ORDER]


async def test_a_click_on_a_header_sorts_by_it() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.sees("USER")
        row = next(y for y, line in enumerate(screen.lines) if "USER" in line)
        await screen.pilot.click(offset=(screen.lines[row].index("USER"), row))
        await screen.sees("USER▲")


async def test_a_click_chooses_a_job_and_two_open_it() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.sees("waits")
        row = next(y for y, line in enumerate(screen.lines) if "waits" in line)
        await screen.pilot.click(offset=(4, row))
        assert screen.app.queue.current is not None
        assert screen.app.queue.current.id == "waits"
        await screen.pilot.double_click(offset=(4, row))
        await screen.sees("waits  large  PD")


async def test_c_asks_first_and_no_changes_nothing() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.chooses("runs")
        await screen.press("c")
        await screen.sees("Cancel this job?", "runs (train)")
        await screen.press("n")
        await screen.sees("nothing was changed")
        assert (await screen.gateway.query("job", {"id": "runs"}))["job"]["state"] == "R"


async def test_c_and_yes_cancels_the_job_under_the_cursor() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.chooses("waits")
        await screen.press("c")
        await screen.sees("waits (large)")
        await screen.press("y")
        await screen.sees("CA 1")
        assert (await screen.gateway.query("job", {"id": "waits"}))["job"]["state"] == "CA"


async def test_a_click_answers_the_question() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.chooses("waits")
        await screen.press("c")
        await screen.sees(" y  yes")
        await screen.pilot.click("#answers", offset=(2, 0))
        await screen.sees("CA 1")


async def test_marked_jobs_are_cancelled_together() -> None:
    async with top_screen(*ONE_OF_EACH, job("w2")) as screen:
        for job_id in ("waits", "w2"):
            await screen.press("g")
            await screen.chooses(job_id)
            await screen.press("space")
        await screen.sees("2 marked")
        await screen.press("g", "c")
        await screen.sees("Cancel 2 jobs?", "w2, waits")
        await screen.press("y")
        await screen.sees("CA 2")
        await screen.sees_no("2 marked")
        assert (await screen.gateway.query("job", {"id": "bobs"}))["job"]["state"] == "PD"


async def test_hold_and_release_say_what_became_of_it() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.chooses("waits")
        await screen.press("H")
        await screen.sees("(held)")
        await screen.press("R")
        await screen.sees_no("(held)")


async def test_another_ones_job_is_refused_in_a_line_and_the_screen_goes_on() -> None:
    people = (UserSet(user="uma", role="user", at_s=NOW_S),)
    async with top_screen(*ONE_OF_EACH, *people, user="uma", owner="olga") as screen:
        await screen.chooses("bobs")
        await screen.press("c")
        await screen.sees("Cancel this job?")
        await screen.press("y")
        await screen.sees("bob's, and uma is no operator")
        await screen.press("2", "l")
        await screen.sees("uma")
        await screen.sees("ask its owner")
        await screen.press("q")
        await screen.sees("bobs")


async def test_what_may_not_be_seen_is_an_error_in_the_job_pane() -> None:
    people = (UserSet(user="uma", role="user", at_s=NOW_S),)
    async with top_screen(*ONE_OF_EACH, *people, user="uma", owner="olga") as screen:
        await screen.chooses("bobs")
        await screen.press("enter")
        await screen.sees("is bob's, and")


async def test_enter_shows_a_waiting_jobs_cause_its_remedy_and_its_story() -> None:
    async with top_screen(*ONE_OF_EACH, size=(100, 50)) as screen:
        await screen.chooses("waits")
        await screen.press("enter")
        await screen.sees("waits  large  PD", "because:", "Story", "submitted by ann")


async def test_w_says_why_over_the_queue_and_escape_goes_back() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.chooses("waits")
        await screen.press("w")
        await screen.sees("why waits", "because:")
        await screen.press("escape")
        await screen.sees("NODES/REASON")


async def test_e_lists_the_events_of_a_job() -> None:
    async with top_screen(*ONE_OF_EACH, size=(120, 30)) as screen:
        await screen.chooses("waits")
        await screen.press("e")
        await screen.sees("events of waits", "job.submitted.v")


async def test_a_running_job_shows_its_metrics_as_they_come() -> None:
    async with top_screen(*RUNNING, size=(100, 60)) as screen:
        await screen.chooses("runs")
        await screen.press("enter")
        for step, loss in ((1, 4.0), (2, 2.0), (3, 1.5)):
            report = RunProgress(epoch=1, step=step, metrics={"loss": loss})
            await progress(screen, "runs", report)
            await screen.sees(f"loss: {loss:g} at step {step}")
        await screen.sees("step 1 to 3", "█")


async def progress(screen: TopScreen, job_id: str, report: RunProgress) -> None:
    await screen.gateway.bus.publish(subjects.progress(job_id), msgspec.json.encode(report))


async def test_l_follows_the_output_and_shows_its_words_as_text() -> None:
    async with top_screen(*RUNNING) as screen:
        await screen.gateway.bus.write_output("runs", 0, b"first [red]line[/red]\n")
        await screen.chooses("runs")
        await screen.press("l")
        await screen.sees("first [red]line[/red]", "follows (f)")
        await screen.gateway.bus.write_output("runs", 0, b"\x1b[32mgreen\x1b[0m \x1b]0;title\x07\nno end")
        await screen.sees("green \\x1b]0;title\\x07", "no end")


async def test_the_log_follows_until_one_scrolls_up() -> None:
    async with top_screen(*RUNNING) as screen:
        await screen.gateway.bus.write_output("runs", 0, b"".join(b"line %d\n" % number for number in range(100)))
        await screen.chooses("runs")
        await screen.press("l")
        await screen.sees("line 99")
        await screen.press("pageup", "pageup")
        await screen.sees("stands still", "line 60")
        await screen.gateway.bus.write_output("runs", 0, b"line 100\n")
        await screen.refreshed()
        assert "line 60" in screen.text
        await screen.press("G")
        await screen.sees("line 100", "follows (f)")


async def test_a_log_is_searched() -> None:
    async with top_screen(*RUNNING) as screen:
        lines = [b"epoch %d %s\n" % (number, b"NaN" if number % 40 == 7 else b"fine") for number in range(200)]
        await screen.gateway.bus.write_output("runs", 0, b"".join(lines))
        await screen.chooses("runs")
        await screen.press("l")
        await screen.sees("epoch 199 fine")
        await screen.press("slash")
        await screen.type("nan")
        await screen.press("enter")
        await screen.sees("epoch 167 NaN")
        await screen.press("N")
        await screen.sees("epoch 127 NaN")
        await screen.press("n", "n")
        await screen.sees("epoch 7 NaN")


async def test_a_device_shows_who_holds_it_and_enter_opens_the_job() -> None:
    async with top_screen(*ONE_OF_EACH, size=(120, 30)) as screen:
        await screen.press("1")
        await screen.sees("n1", "an ..", "by user: ann 1", "runs of ann")
        await screen.press("right")
        await screen.sees("idle, up")
        await screen.press("enter")
        await screen.sees("this device is idle")
        await screen.press("left", "enter")
        await screen.sees("runs  train  R")
        await screen.press("q")
        await screen.sees("by user: ann 1")


async def test_o_colours_devices_by_user_team_or_state() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.press("1", "o")
        await screen.sees("by team: ann 1")
        await screen.press("o")
        await screen.sees("by state: R 1", "R  ..")


async def test_d_drains_a_node_after_a_question_and_gives_it_jobs_again() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.press("1")
        await screen.sees("n1")
        await screen.press("d")
        await screen.sees("Drain n1?", "1 job on it")
        await screen.press("y")
        await screen.sees("draining", "an --")
        await screen.press("d")
        await screen.sees("Give n1 jobs again?")
        await screen.press("y")
        await screen.sees_no("draining")


async def test_draining_is_for_operators() -> None:
    people = (UserSet(user="uma", role="user", at_s=NOW_S),)
    async with top_screen(*ONE_OF_EACH, *people, user="uma", owner="olga") as screen:
        await screen.press("1")
        await screen.sees("n1")
        await screen.press("d", "y")
        await screen.sees("drain is for operators")


async def test_tab_and_numbers_go_over_the_panes_and_q_goes_back_before_it_ends() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        app = screen.app
        assert app.pane == "queue"
        await screen.press("tab")
        assert app.pane == "job"
        await screen.press("tab")
        assert app.pane == "log"
        await screen.press("1")
        assert app.pane == "devices"
        await screen.press("shift+tab")
        assert app.pane == "log"
        await screen.press("q")
        assert app.pane == "queue"
        await screen.press("q")
        await screen.pilot.pause()
        assert not app.is_running


async def test_the_help_names_every_key() -> None:
    async with top_screen() as screen:
        await screen.press("question_mark")
        await screen.sees("1 2 3 4 Tab", "drain the node", "cancel (asks first)")
        await screen.press("q")
        await screen.sees_no("cancel (asks first)")
        assert screen.app.is_running


async def test_a_server_that_is_away_is_shown_with_the_age_and_it_goes_on_when_it_is_back() -> None:
    async with top_screen(*ONE_OF_EACH, timeout_s=0.3) as screen:
        await screen.sees("runs")
        screen.bus.disconnect()
        await screen.sees("NO ANSWER; what is seen is", "runs")
        await screen.press("j", "1", "2")
        await screen.sees("NO ANSWER", "runs")
        screen.bus.reconnect()
        await screen.sees_no("NO ANSWER")
        await screen.gateway.told(job("new"))
        await screen.sees("new")


async def test_a_log_goes_on_when_the_server_is_back() -> None:
    async with top_screen(*RUNNING, timeout_s=0.3) as screen:
        await screen.gateway.bus.write_output("runs", 0, b"before\n")
        await screen.chooses("runs")
        await screen.press("l")
        await screen.sees("before")
        screen.bus.disconnect()
        await screen.sees("NO ANSWER")
        screen.bus.reconnect()
        await screen.gateway.bus.write_output("runs", 0, b"after\n")
        await screen.sees("before", "after")
        assert screen.text.count("before") == 1


async def test_the_past_is_shown_and_cannot_be_changed() -> None:
    facts = (joined(fast=2), job("first"), job("later"))
    async with top_screen(*facts, at=2, at_words="2") as screen:
        await screen.sees("as of 2", "first")
        assert "later" not in screen.text
        await screen.press("c")
        await screen.sees("this is the past (2): nothing can be changed there")
        await screen.press("enter")
        await screen.sees("first  train  PD")
        assert (await screen.gateway.query("job", {"id": "first"}))["job"]["state"] == "PD"


async def test_y_copies_the_id() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.chooses("waits")
        await screen.press("y")
        await screen.sees("copied waits")
        assert screen.app.clipboard == "waits"


async def test_the_cursor_stays_on_its_job_when_others_come_before_it() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.chooses("waits")
        await screen.gateway.told(*(job(f"new{number}", at_s=NOW_S + 50) for number in range(5)))
        await screen.sees("new4")
        assert screen.app.queue.current is not None
        assert screen.app.queue.current.id == "waits"


async def test_a_job_that_was_preempted_many_times_shows_its_whole_story() -> None:
    facts = [joined(fast=2), job("tossed")]
    for epoch in range(1, 51):
        facts += [placed("tossed", 0, epoch=epoch), started("tossed", epoch=epoch)]
        facts += [preempted("tossed", epoch=epoch), ended("tossed", "preempted", epoch=epoch)]
    async with top_screen(*facts, size=(100, 40)) as screen:
        await screen.chooses("tossed")
        await screen.press("enter")
        await screen.sees("because:")
        await screen.press("G")
        await screen.sees("submitted by ann")
        await screen.press("g")
        await screen.sees("preempted 50 times")


async def test_a_job_that_is_gone_says_so() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        screen.app._open("nowhere", "job")
        await screen.sees("no job 'nowhere'")


async def test_going_to_another_pane_ends_the_typing_and_keeps_the_filter() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.press("slash")
        await screen.type("bob")
        await screen.sees("only with 'bob'")
        await screen.press("tab", "2")
        await screen.sees("only with 'bob'")
        await screen.press("u")
        await screen.sees("of ann")


async def test_letters_that_are_typed_are_no_commands() -> None:
    async with top_screen(*ONE_OF_EACH) as screen:
        await screen.press("slash")
        await screen.type("cq1?")
        await screen.sees("only with 'cq1?'")
        assert screen.app.is_running
        assert screen.app.pane == "queue"
