"""Looking at jobs and acting on them: exact text, JSON, filters and exit codes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from fake_gateway import FakeGateway, job_view, why_view

from penstock.client import Client
from penstock.submission import user_name
from penstock_bus import Reply
from penstock_cli.commands import acts
from penstock_cli.job_text import story_table, why_lines
from penstock_log import Alternative, JobState, request_bodies, views

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gateway() -> FakeGateway:
    return FakeGateway(
        job_view("a1", name="mnist", state="R", gpus=2, run_s=65.0, steps=120, queue=0, attempts=1, cause="",
                 placed_on=("n1/fast0", "n1/fast1"), devices=("n1/fast0", "n1/fast1"), metrics={"loss": 0.25}),
        job_view("b2", name="a-long-name", user="ben", queue=1, submitted_s=1001.0),
        job_view("c3", state="PD", held=True, submitted_s=1002.0),
        job_view("d4", state="F", exit_code=3, run_s=3.0, reason="exit code 3", cause="", submitted_s=999.0),
    )  # fmt: skip


def test_ps_lines_up_as_squeue_does(penstock: Run) -> None:
    assert penstock("ps") == (
        0,
        """\
ID  NAME         USER  ST  GPUS   WAIT    RUN  STEPS  NODES/REASON
d4  train        ann   F      1  12.0s   3.0s      0  exit code 3
a1  mnist        ann   R      2  12.0s  1m05s    120  n1/fast0,fast1
b2  a-long-name  ben   PD     1  12.0s   0.0s      0  (capacity)
c3  train        ann   PD     1  12.0s   0.0s      0  (held)
""",
        "",
    )


def test_ps_wide_has_more_columns(penstock: Run) -> None:
    code, out, _ = penstock("ps", "-o", "wide")
    head, _, mnist, *_ = out.splitlines()
    assert code == 0
    assert head.split()[-8:] == ["QUEUE", "KINDS", "POOL", "PARENT", "PREEMPTED", "TRIES", "METRICS", "NODES/REASON"]
    assert mnist.split()[-8:] == ["0", "any", "default", "-", "0", "1", "loss=0.25", "n1/fast0,fast1"]


def test_ps_json_is_the_view_itself(penstock: Run) -> None:
    _, out, _ = penstock("ps", "-a", "-o", "json")
    assert [job.id for job in msgspec.json.decode(out, type=views.JobsView).jobs] == ["a1", "b2", "c3", "d4"]


def test_ps_asks_for_open_jobs_and_the_last_that_ended(penstock: Run, gateway: FakeGateway) -> None:
    penstock("ps", "--user", "ann", "--name", "tr*")
    ended, still_open = gateway.asked
    assert ended == request_bodies.JobsRequest(state=("CD", "F", "CA"), user="ann", name="tr*", rows=True, limit=20)
    open_states = ("PD", "R", "PR", "CG")
    assert still_open == request_bodies.JobsRequest(state=open_states, user="ann", name="tr*", rows=True, limit=500)


def test_ps_asks_for_jobs_by_their_ids_at_once_and_then_for_arrays(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("ps", "--id", "a1", "--id", "700", "-s", "R")[0] == 0
    assert gateway.asked == [
        request_bodies.JobsRequest(ids=("a1", "700"), state=("R",), rows=True),
        request_bodies.JobsRequest(group="700", state=("R",), rows=True),
    ]
    assert penstock("ps", "--id", "a1", "--group", "700")[0] == 2


def test_ps_leaves_out_what_ended_before_a_time(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("ps", "--since", "1970-01-01T00:01:00Z")[0] == 0
    assert gateway.asked == [request_bodies.JobsRequest(since_s=60.0, rows=True)]
    code, _, err = penstock("ps", "--since", "noon")
    assert (code, err.split(";")[0]) == (2, "penstock: --since 'noon' is no time")


def test_ps_takes_states_in_any_case_and_a_moment(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("ps", "-s", "r,pd", "--at", "17")[0] == 0
    assert gateway.asked == [request_bodies.JobsRequest(state=("R", "PD"), rows=True, at=17)]


@pytest.mark.parametrize("typed", ["RUNNING,PENDING", "running,waiting", "R,pd", "Running, queued", "r,r,PD"])
def test_states_are_taken_as_words_and_as_letters_in_any_case(penstock: Run, gateway: FakeGateway, typed: str) -> None:
    assert penstock("ps", "-s", typed)[0] == 0
    assert gateway.asked == [request_bodies.JobsRequest(state=("R", "PD"), rows=True)]


def test_every_state_may_be_typed_by_its_own_name(penstock: Run, gateway: FakeGateway) -> None:
    for state in JobState:
        assert penstock("ps", "-s", state.name)[0] == 0
    assert [ask.state for ask in gateway.asked if isinstance(ask, request_bodies.JobsRequest)] == [
        (state,) for state in JobState
    ]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("ps", "-s", "XX"), "--state 'XX' is no state; expected some of PD, R, PR, CG, CD, F, CA"),
        (("ps", "--at", "noon"), "--at 'noon' is no moment; expected a stream sequence, a span such as 10m, "),
    ],
)
def test_bad_flags_are_told_in_one_line(penstock: Run, args: tuple[str, ...], expected: str) -> None:
    code, out, err = penstock(*args)
    assert (code, out) == (2, "")
    assert err.startswith(f"penstock: {expected}")
    assert err.count("\n") == 1


def test_why_names_one_cause_then_evidence_what_it_is_not_and_the_remedy(
    penstock: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_cli.commands.jobs.now_s", lambda: 0.0)
    assert (
        penstock("why", "b2")[1]
        == """\
b2 (a-long-name) is PD: capacity
  because:  all 2 fast devices run jobs that rank higher
  checked:  not its size: one free device would do
  checked:  not its profile: its speeds are known
  change:   accept slow devices too
  place:    queue 1, 4 waiting ahead
"""
    )


def test_why_shows_what_would_start_it_now_or_when_it_is_expected_to() -> None:
    job = why_view(job_view("a1"))
    best = Alternative(
        change={"kinds": ("fast", "slow")}, kind="slow", speed=0.4, text="accept `slow` too: it starts now"
    )
    lines = why_lines(msgspec.structs.replace(job, alternative=best), 0.0)
    assert "  change:   accept `slow` too: it starts now" in lines
    lines = why_lines(msgspec.structs.replace(job, remedy="", start_in_s=75.0, basis="1 job by its run time"), 0.0)
    assert "  starts:   in about 1m15s (an estimate: 1 job by its run time)" in lines


def test_why_says_where_only_waiting_helps() -> None:
    waiting = views.WhyView(
        id="a1",
        name="mnist",
        state="PD",
        cause="later_place",
        evidence="it is next",
        remedy="",
        not_causes=(),
        since_s=0.0,
        rank=None,
    )
    assert why_lines(waiting, 0.0) == [
        "a1 (mnist) is PD: later place",
        "  because:  it is next",
        "  change:   nothing known starts it sooner; it only has to wait",
    ]
    assert why_lines(msgspec.structs.replace(waiting, state="R", cause="running"), 0.0)[2:] == []


def test_show_tells_all_and_leaves_out_what_is_not(penstock: Run) -> None:
    code, out, _ = penstock("show", "d4")
    assert code == 0
    lines = dict(line.split(":", 1) for line in out.splitlines() if line)
    assert lines["state"].strip() == "F (failed)"
    assert lines["exit code"].strip() == "3"
    assert lines["command"].strip() == "python train.py"
    assert lines["wants"].strip() == "1 x any kind but a bare CPU"
    assert "params" not in lines


def test_show_of_a_waiting_job_says_why(penstock: Run) -> None:
    assert "because:  all 2 fast devices" in penstock("show", "b2")[1]


def test_the_story_is_told_in_order_of_time(penstock: Run) -> None:
    assert penstock("story", "a1")[1] == "AFTER  WHAT\n+1.5s  placed on n1/fast0\n"
    assert penstock("story", "a1", "-o", "wide")[1].splitlines()[0].split() == [
        "AFTER", "TIME", "SEQ", "CAUSE", "ACTOR", "WHAT",
    ]  # fmt: skip


def test_checkpoints_in_a_row_are_told_as_one() -> None:
    def line(after_s: float, text: str) -> views.StoryLine:
        return views.StoryLine(at_s=after_s, after_s=after_s, text=text, seq=1, cause=0, actor="x")

    saved = [line(step, f"checkpointed after step {step}") for step in range(1, 7)]
    told = views.StoryView(id="a1", name="mnist", lines=(*saved[:4], line(4.5, "to be preempted"), *saved[4:]))
    assert story_table(told)[1] == [
        ("+4.0s", "checkpointed after step 4, the last of 4 checkpoints"),
        ("+4.5s", "to be preempted"),
        ("+5.0s", "checkpointed after step 5"),
        ("+6.0s", "checkpointed after step 6"),
    ]


def test_events_show_each_fact_on_a_line(penstock: Run, gateway: FakeGateway) -> None:
    gateway.events = (
        views.EventView(
            seq=3, stored_s=1.0, subject="penstock.evt.job.a1", actor="gateway/x", cause=0,
            type="job.held.v1", at_s=0.0, fact={"job_id": "a1", "by": "ann"},
        ),
    )  # fmt: skip
    out = penstock("events", "a1", "--limit", "5")[1].splitlines()
    assert gateway.asked == [request_bodies.EventsRequest(id="a1", limit=5)]
    assert out[0].split() == ["SEQ", "TIME", "TYPE", "ENTITY", "FACT"]
    assert out[1].split()[0] == "3"
    assert out[1].endswith('job.held.v1  job/a1  {"by":"ann"}')
    out = penstock("events", "a1", "-o", "wide")[1].splitlines()
    assert out[0].split() == ["SEQ", "TIME", "TYPE", "ENTITY", "ACTOR", "CAUSE", "FACT"]
    assert out[1].endswith('job.held.v1  job/a1  gateway/x  -      {"job_id":"a1","by":"ann"}')


def test_following_the_events_of_a_shortened_id_shows_those_of_the_whole_one(
    penstock: Run, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.events = (
        views.EventView(
            seq=1, stored_s=1.0, subject="penstock.evt.job.b2", actor="gateway/x", cause=0,
            type="job.held.v1", at_s=0.0, fact={"job_id": "b2", "by": "ann"},
        ),
    )  # fmt: skip
    followed = []

    async def follow(self: Client, entity_id: str, *, after: int) -> AsyncIterator[views.EventView]:
        followed.append(entity_id)
        yield gateway.events[0]

    monkeypatch.setattr(Client, "follow_events", follow)
    assert penstock("events", "b", "-f", "-o", "json")[1].count("job.held.v1") == 2
    assert followed == ["b2"]


@pytest.mark.parametrize("command", ["cancel", "hold", "release"])
def test_commands_take_several_jobs_and_say_what_became_of_each(penstock: Run, command: str) -> None:
    code, out, _ = penstock(command, "a1", "b2")
    assert code == 0
    assert [line.split()[0].rstrip(":") for line in out.splitlines()] == ["a1", "b2"]


def bulk_asked(gateway: FakeGateway) -> list[request_bodies.BulkRequest]:
    return [ask for ask in gateway.asked if isinstance(ask, request_bodies.BulkRequest)]


def test_several_jobs_are_one_request(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("cancel", "a1", "b2", "--reason", "late")[0] == 0
    (asked,) = bulk_asked(gateway)
    assert (asked.verb, asked.ids, asked.where, asked.reason) == ("cancel", ("a1", "b2"), None, "late")
    assert len(gateway.asked) == 1


def test_a_retry_of_jobs_says_which_states_it_is_about(penstock: Run, gateway: FakeGateway) -> None:
    for flags, states in (((), ()), (("--failed",), ("F",)), (("--cancelled",), ("F", "CA"))):
        penstock("retry", "a1", *flags)
        assert (bulk_asked(gateway)[-1].ids, bulk_asked(gateway)[-1].state) == (("a1",), states)


def test_all_jobs_of_a_user_that_are_not_over_are_cancelled(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("cancel", "--user", "ann", "--reason", "flood") == (0, "2 jobs cancelled\n", "")
    (asked,) = bulk_asked(gateway)
    assert (asked.where, asked.reason) == (request_bodies.JobFilter(user="ann"), "flood")
    assert penstock("cancel", "--user", "ann") == (0, "no job matches\n", "")


def test_a_filter_is_about_jobs_of_ones_own_unless_it_says_whose(penstock: Run, gateway: FakeGateway) -> None:
    me = user_name()
    for words, expected in (
        (("--all",), {"user": me}),
        (("--state", "running", "--name", "tr*"), {"user": me, "state": ("R",), "name": "tr*"}),
        (("--user", "me", "--sweep", "s1"), {"user": me, "parent": "s1"}),
        (("--user", "bob", "--pool", "big", "--team", "t"), {"user": "bob", "pool": "big", "team": "t"}),
        (("--everybody", "-s", "PD"), {"state": ("PD",)}),
    ):
        assert penstock("hold", *words)[0] == 0
        assert bulk_asked(gateway)[-1].where == request_bodies.JobFilter(**expected)


def test_a_dry_run_lists_what_would_be_changed_and_changes_nothing(penstock: Run, gateway: FakeGateway) -> None:
    code, out, _ = penstock("cancel", "--user", "ann", "--dry-run")
    assert (code, out.splitlines()[0], out.splitlines()[-1]) == (
        0,
        "a1 would be cancelled",
        "2 jobs would be cancelled",
    )
    assert [asked.dry_run for asked in bulk_asked(gateway)] == [True]
    assert penstock("cancel", "a1", "--dry-run") == (0, "a1 would be cancelled\n", "")


@pytest.mark.parametrize("typed", ["y", "", "no"])
def test_a_person_at_a_terminal_is_asked_before_many_jobs_are_cancelled(
    penstock: Run, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.setattr(acts, "_is_person", lambda: True)
    result = penstock("cancel", "--user", "ann", stdin=f"{typed}\n")
    assert result[:2] == ((0, "2 jobs cancelled\n") if typed == "y" else (1, ""))
    assert "cancel 2 jobs of ann? [y/N] " in result[2]
    assert [asked.dry_run for asked in bulk_asked(gateway)] == [True] + [False] * (typed == "y")
    assert "[y/N]" not in penstock("cancel", "--user", "ann", "--yes")[2]


@pytest.mark.parametrize("typed", ["y", ""])
def test_a_person_at_a_terminal_is_asked_before_an_array_is_cancelled(
    penstock: Run, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.setattr(acts, "_is_person", lambda: True)
    code, _, said = penstock("cancel", "zz2", stdin=f"{typed}\n")
    assert (code, " jobs of array zz2? [y/N] " in said) == (0 if typed else 1, True)
    assert [asked.dry_run for asked in bulk_asked(gateway)] == [True] + [False] * bool(typed)
    assert "[y/N]" not in penstock("cancel", "zz2", "--yes")[2]


@pytest.mark.parametrize(
    "words", [(), ("b2", "--user", "ann"), ("--dry-run",), ("--everybody",), ("--everybody", "--all")]
)
def test_jobs_to_cancel_are_named_or_chosen(penstock: Run, gateway: FakeGateway, words: tuple[str, ...]) -> None:
    code, _, said = penstock("cancel", *words)
    assert (code, "expected" in said, gateway.asked) == (2, True, [])


@pytest.mark.parametrize("verb", ["cancel", "hold", "release", "retry", "extend"])
@pytest.mark.parametrize("words", [("",), (" ",), ("", "b2"), ("", "--dry-run"), ("", "--yes")])
def test_the_empty_id_of_an_unset_variable_stands_for_no_jobs(
    penstock: Run, gateway: FakeGateway, verb: str, words: tuple[str, ...]
) -> None:
    words = ("", "--to", "2h") if verb == "extend" else words
    code, _, said = penstock(verb, *words)
    assert (code, "penstock: " in said, gateway.asked) == (2, True, [])


def test_an_unknown_job_does_not_keep_the_others_from_being_cancelled(penstock: Run, gateway: FakeGateway) -> None:
    code, out, err = penstock("cancel", "nope", "b2", "--reason", "wrong data")
    assert code == 4
    assert out == "b2 is cancelled\n"
    assert err == "penstock: there is no job 'nope'; list them with `penstock ps -a`\n"
    assert gateway.jobs["b2"].reason == "wrong data"


@pytest.mark.parametrize(("code", "exit_code"), [(400, 2), (404, 4), (409, 5), (413, 2), (500, 1), (503, 3)])
def test_what_the_gateway_refuses_becomes_an_exit_code(
    penstock: Run, gateway: FakeGateway, code: int, exit_code: int
) -> None:
    gateway.refusal = Reply(code=code, error="it was wrong; do better")
    assert penstock("show", "a1") == (exit_code, "", "penstock: it was wrong; do better\n")


def test_the_address_may_stand_behind_the_command(penstock: Run, gateway: FakeGateway) -> None:
    penstock("ps", "--url", "nats://elsewhere:4222")
    assert gateway.url == "nats://elsewhere:4222"
    assert json.loads(penstock("--url=nats://b:1", "ps", "-o", "json")[1])["seq"] == 7
    assert gateway.url == "nats://b:1"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (("j1", "ls"), "j1 -- ls"),
        (("--rank", "1", "j1", "ls", "-l", "a b"), "--rank 1 j1 -- ls -l 'a b'"),
        (("j1", "env", "--", "A=1"), "j1 -- env A=1"),
    ],
)
def test_a_command_of_exec_without_dashes_is_shown_with_them(penstock: Run, typed: tuple[str, ...], meant: str) -> None:
    code, _, err = penstock("exec", *typed)
    assert (code, err) == (2, f"penstock: the command stands behind --; write: penstock exec {meant}\n")


def test_indices_that_are_cut_at_the_brackets_are_shown_whole(penstock: Run, gateway: FakeGateway) -> None:
    code, _, err = penstock("hold", "exp-1[5-9]")
    assert (code, "'exp-[15-19]'" in err, gateway.asked) == (2, True, [])
