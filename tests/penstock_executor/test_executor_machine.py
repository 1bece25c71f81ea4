"""What an executor decides, from the log and from what it finds: no process, no clock."""

from __future__ import annotations

import pytest
from executor_machine_cases import (
    KILL,
    Node,
    ask,
    cancelled,
    ended,
    joined,
    leaving,
    lost,
    placed,
    preempted,
    started,
    submitted,
    term,
)
from hypothesis import given
from hypothesis import strategies as st

from penstock_executor import machine
from penstock_executor.machine import (
    HAS_HAD_ITS_RUNS,
    AnnounceLeaving,
    AnnounceNode,
    AskToStop,
    RemoveRun,
    RequestLanes,
    StartRun,
    TellTime,
    TerminateRun,
    WithdrawNode,
)
from penstock_executor.run_state import RunProcess, SharingProgress
from penstock_log import AnyEvent, JobSpec, JobTimeSet, ProfileSample, SamplesRequested


@pytest.fixture
def node() -> Node:
    return Node().given(joined())


# --- the node
def test_a_node_joins_once() -> None:
    node = Node().then(AnnounceNode())
    node.given(joined()).then()


def test_a_node_that_another_incarnation_joined_joins_again() -> None:
    Node().given(joined(incarnation="before-1")).then(AnnounceNode())


def test_a_node_ends_what_no_longer_belongs_to_it_before_it_joins() -> None:
    node = Node().given(joined(incarnation="before-1"), submitted(), placed(), started(), lost())
    run = node.running()
    node.then(KILL)
    run.killed_s = node.now_s
    node.then()
    run.ranks[0].ended_s = node.now_s
    node.then(RemoveRun(job_id="j1", epoch=1))
    del node.observed.runs["j1", 1]
    node.then(AnnounceNode())


def test_a_lost_node_starts_nothing_until_it_has_joined_again(node: Node) -> None:
    node.given(submitted(), lost(), placed()).then(AnnounceNode())


# --- beginning
def test_a_placed_job_is_started(node: Node) -> None:
    node.given(submitted(), placed()).then(StartRun(job_id="j1"))


def test_nothing_is_started_while_the_matcher_may_have_given_the_grant_to_another(node: Node) -> None:
    node.given(submitted(), placed(patience_s=10.0))
    node.observed.unheard_s = 7.5
    node.then()
    node.observed.unheard_s = 7.4
    node.then(StartRun(job_id="j1"))


def test_a_run_without_a_trace_is_lost_only_when_an_executor_elsewhere_has_stopped_it(node: Node) -> None:
    node.given(submitted(), placed(patience_s=10.0), started()).then()
    node.observed.alone_s = node.now_s - 9.0
    assert (node.plan().actions, node.plan().wake_at_s) == ([], node.now_s + 1.0)
    node.now_s += 1.0
    assert node.fact().outcome == "lost"


def test_a_job_placed_elsewhere_is_not_started(node: Node) -> None:
    node.given(joined("n2"), submitted(), placed(nodes=("n2",))).then()


def test_a_run_that_is_here_is_not_started_again(node: Node) -> None:
    node.given(submitted(), placed())
    node.running()
    node.then()


def test_a_placement_of_an_older_epoch_is_refused(node: Node) -> None:
    node.given(submitted(), placed(epoch=1), ended(outcome="preempted"), placed(epoch=2), ended(epoch=2))
    node.given(placed(epoch=1)).then()


def test_a_device_holds_one_run_at_most(node: Node) -> None:
    node.given(submitted("j1"), submitted("j2"), placed("j1"), started("j1"), placed("j2"))
    run = node.running("j1")
    node.then()
    run.ranks[0] = RunProcess(exit_code=0, ended_s=node.now_s)
    run.reported.add("ended")
    node.then(StartRun(job_id="j2"))


def test_two_leases_of_one_device_start_one_run(node: Node) -> None:
    node.given(submitted("j1"), submitted("j2"), placed("j1"), placed("j2")).then(StartRun(job_id="j1"))


def test_a_job_that_was_cancelled_before_it_started_never_starts(node: Node) -> None:
    node.given(submitted(), placed(), cancelled())
    assert node.fact().outcome == "cancelled"


def test_a_job_that_was_preempted_before_it_started_never_starts(node: Node) -> None:
    node.given(submitted(), placed(), preempted())
    assert node.fact().outcome == "preempted"


def test_a_run_that_left_no_trace_is_lost(node: Node) -> None:
    node.given(submitted(), placed(), started())
    assert node.fact().outcome == "lost"


# --- ending
def test_a_preempted_job_that_speaks_is_asked_then_gets_term_then_kill(node: Node) -> None:
    node.given(submitted(), placed(), started(), preempted())
    run = node.running()
    run.ranks[0].greeted = True
    node.then(ask())
    run.asked_s = node.now_s
    node.then()
    assert node.plan().wake_at_s == 105.0
    node.now_s = 105.0
    node.then(term("preempted"))
    run.termed_s, node.now_s = node.now_s, 109.9
    node.then()
    node.now_s = 110.0
    node.then(KILL)


def test_a_preempted_job_that_never_spoke_gets_term_at_once(node: Node) -> None:
    node.given(submitted(), placed(), started(), preempted())
    node.running()
    node.then(term("preempted"))


def test_a_cancelled_job_is_not_asked_first(node: Node) -> None:
    node.given(submitted(), placed(), started(), preempted(), cancelled())
    run = node.running()
    run.ranks[0].greeted, run.asked_s = True, 99.0
    node.then(term("cancelled"))


def test_a_run_is_told_its_time_and_warned_once_before_it_is_over(node: Node) -> None:
    node.given(submitted(time_limit_s=50.0, warn_s=20.0, warn_signal="USR1"), placed(), started())
    node.now_s = 10.0
    run = node.running()
    node.then(TellTime(job_id="j1", epoch=1, due_s=53.0))
    run.told_due_s = 53.0
    node.then()
    assert node.plan().wake_at_s == 33.0
    node.now_s = 33.0
    text = "its time limit of 50.0 s ends it in 20.0 s; penstock extend gives it more"
    short = {"is_short": True, "signal": "USR1", "warning": text}
    node.then(TellTime(job_id="j1", epoch=1, due_s=53.0, **short))
    run.warned = True
    node.then()


def test_more_time_is_told_and_warned_of_anew(node: Node) -> None:
    node.given(submitted(time_limit_s=50.0), placed(), started())
    node.now_s = 10.0
    run = node.running()
    run.told_due_s, run.warned = 53.0, True
    node.given(JobTimeSet(at_s=110.0, job_id="j1", limit_s=100.0))
    node.then(TellTime(job_id="j1", epoch=1, due_s=103.0))
    run.told_due_s, run.warned = 103.0, False
    node.then()
    assert node.plan().wake_at_s == 93.0  # a tenth of its limit before
    node.given(JobTimeSet(at_s=110.0, job_id="j1", limit_s=0.0))
    node.then(TellTime(job_id="j1", epoch=1, due_s=None))


def test_a_run_without_a_warning_or_one_that_ends_already_is_not_warned(node: Node) -> None:
    node.given(submitted(time_limit_s=50.0, warn_s=0.0), placed(), started())
    node.now_s = 10.0
    run = node.running()
    run.told_due_s = 53.0
    node.now_s = 52.0
    node.then()
    run.told_due_s, run.termed_s = None, 52.0
    node.then()


def test_when_one_process_crashes_the_others_are_ended(node: Node) -> None:
    node.given(submitted(), placed(), started())
    run = node.running(ranks=2)
    run.ranks[0] = RunProcess(exit_code=1, ended_s=99.0)
    node.then(term("gang"))


def test_when_one_process_has_succeeded_the_others_go_on(node: Node) -> None:
    node.given(submitted(), placed(), started())
    run = node.running(ranks=2)
    run.ranks[0] = RunProcess(exit_code=0, ended_s=99.0)
    node.then()


def test_a_gang_that_failed_on_another_node_is_ended_here(node: Node) -> None:
    node.given(joined("n2"), submitted(gpus=2), placed(nodes=("n1", "n2")), started())
    node.given(ended(node_id="n2", outcome="failed"))
    node.running(world=2)
    node.then(term("gang"))


def test_a_preempted_gang_that_has_left_another_node_may_leave_here_in_peace(node: Node) -> None:
    node.given(joined("n2"), submitted(gpus=2), placed(nodes=("n1", "n2")), started(), preempted())
    node.given(ended(node_id="n2", outcome="preempted"))
    run = node.running(world=2)
    run.ranks[0].greeted, run.asked_s = True, node.now_s
    node.then()


def test_a_sample_that_takes_too_long_is_ended(node: Node) -> None:
    sample = ProfileSample(sample_id="s1", kind="fast", iterations=3)
    spec = JobSpec(name="s", command=("true",))
    node.given(SamplesRequested(key="k", spec=spec, samples=(sample,), at_s=1.0), placed("s1"), started("s1"))
    node.running("s1")
    node.then()
    assert node.plan().wake_at_s == 160.0
    node.now_s = 160.0
    node.then(TerminateRun(job_id="s1", epoch=1, ending="time_limit"))


@pytest.mark.parametrize(
    ("rank", "run_fields", "facts", "outcome"),
    [
        (RunProcess(exit_code=0), {}, (), "completed"),
        (RunProcess(exit_code=1), {}, (), "failed"),
        (RunProcess(exit_code=None), {}, (), "lost"),
        (RunProcess(exit_code=75, leaving=True), {"ending": "preempted", "asked_s": 90.0}, (preempted(),), "preempted"),
        (RunProcess(exit_code=143), {"ending": "preempted", "termed_s": 99.0}, (preempted(),), "preempted"),
        (RunProcess(exit_code=137), {}, (preempted(),), "failed"),
        (RunProcess(exit_code=75), {}, (preempted(),), "preempted"),
        (RunProcess(exit_code=0), {"ending": "preempted", "asked_s": 90.0}, (preempted(),), "completed"),
        (RunProcess(exit_code=1), {"ending": "preempted", "asked_s": 90.0}, (preempted(),), "failed"),
        (RunProcess(exit_code=143), {"ending": "cancelled", "termed_s": 99.0}, (cancelled(),), "cancelled"),
        (RunProcess(exit_code=143), {"ending": "preempted", "termed_s": 99.0}, (cancelled(),), "cancelled"),
        (RunProcess(exit_code=75), {}, (), "failed"),
    ],
)
def test_how_a_process_ended_and_why_it_was_ended_give_the_outcome(
    node: Node, rank: RunProcess, run_fields: dict[str, object], facts: tuple[AnyEvent, ...], outcome: str
) -> None:
    node.given(submitted(), placed(), started(), *facts)
    run = node.running()
    rank.ended_s = node.now_s
    run.ranks[0] = rank
    for name, value in run_fields.items():
        setattr(run, name, value)
    assert node.fact().outcome == outcome


def test_the_reason_is_that_of_the_process_that_failed_first(node: Node) -> None:
    node.given(submitted(), placed(), started())
    run = node.running(ranks=3)
    run.termed_s = 99.5
    run.ranks[0] = RunProcess(exit_code=143, ended_s=99.9)
    run.ranks[1] = RunProcess(exit_code=1, ended_s=99.1, last_line="KeyError: 'x'")
    run.ranks[2] = RunProcess(exit_code=2, ended_s=99.2)
    assert node.fact().reason == "rank 1 of 3: exit code 1: KeyError: 'x'"


def test_a_run_is_cleaned_up_once_its_end_is_in_the_log(node: Node) -> None:
    node.given(submitted(), placed(), started())
    run = node.running()
    run.ranks[0] = RunProcess(exit_code=0, ended_s=node.now_s)
    assert node.fact().outcome == "completed"
    run.reported.add("ended")
    node.then()
    node.given(ended()).then(RemoveRun(job_id="j1", epoch=1))


# --- stopping
def test_a_node_that_stops_says_so_before_it_ends_a_run_and_tells_each_end_at_once(node: Node) -> None:
    node.given(submitted("j1"), submitted("j2"), placed("j1"), placed("j2", device=1), started("j1"), started("j2"))
    first, second = node.running("j1"), node.running("j2", device=1)
    node.observed.draining = True
    node.then(AnnounceLeaving())
    node.given(leaving())
    assert [type(action) for action in node.plan().actions] == [TerminateRun, TerminateRun]
    for run in (first, second):
        run.ending, run.termed_s = "preempted", node.now_s
    first.ranks[0] = RunProcess(exit_code=143, ended_s=node.now_s)
    assert (node.fact().job_id, node.fact().outcome) == ("j1", "preempted")
    node.observed.runs.clear()
    node.given(ended("j1", outcome="preempted"), ended("j2", outcome="preempted")).then(WithdrawNode())


def test_a_node_that_has_not_joined_has_nothing_to_say_when_it_stops(node: Node) -> None:
    node.given(joined(incarnation="another-1"))
    node.observed.draining = True
    node.then()


def test_a_process_that_ends_while_its_node_stops_is_preempted_unless_it_was_done(node: Node) -> None:
    node.given(submitted(), placed(), started(), leaving())
    run = node.running()
    for code, done, expected in (
        (143, False, "preempted"),
        (1, False, "preempted"),
        (0, False, "preempted"),
        (0, True, "completed"),
    ):
        run.ranks[0] = RunProcess(exit_code=code, ended_s=node.now_s, stopped=True, done=done)
        assert node.fact().outcome == expected, (code, done)
    run.ranks[0] = RunProcess(exit_code=143, ended_s=node.now_s, stopped=True)
    assert node.fact().reason == "node n1 is shutting down; signal SIGTERM (exit code 143)"
    assert not node.fact().killed
    run.ranks[0].stopped = False  # it ended before anything was stopped
    assert node.fact().outcome == "failed"


def test_what_a_run_was_ended_for_counts_though_its_node_stops(node: Node) -> None:
    node.given(submitted(), placed(), started(), leaving())
    run = node.running()
    run.ranks[0] = RunProcess(exit_code=137, ended_s=node.now_s, stopped=True)
    run.ending, run.why = "host_memory", "it took more than its share"
    assert (node.fact().outcome, node.fact().reason) == ("failed", "it took more than its share")
    run.ending, run.why = "", ""
    node.given(cancelled())
    assert node.fact().outcome == "cancelled"


def test_the_part_of_a_gang_that_fails_as_another_node_stops_is_preempted(node: Node) -> None:
    node.given(joined("n2"), submitted(gpus=2), placed(nodes=("n1", "n2")), started())
    run = node.running(world=2)
    run.ranks[0] = RunProcess(exit_code=1, ended_s=node.now_s, last_line="connection reset by peer")
    assert node.fact().outcome == "failed"
    node.given(leaving("n2"))
    reason = "node n2 is shutting down; rank 0 of 2: exit code 1: connection reset by peer"
    assert (node.fact().outcome, node.fact().reason) == ("preempted", reason)


@pytest.mark.parametrize(
    "elsewhere",
    [
        (leaving("n2", HAS_HAD_ITS_RUNS),),
        (leaving("n2", HAS_HAD_ITS_RUNS), ended(node_id="n2")),
        (ended(node_id="n2"), leaving("n2")),  # it had been idle
    ],
)
def test_the_part_of_a_gang_that_fails_by_itself_has_failed_though_a_node_leaves_that_is_done(
    node: Node, elsewhere: tuple[AnyEvent, ...]
) -> None:
    node.given(joined("n2"), submitted(gpus=2), placed(nodes=("n1", "n2")), started(), started(node_id="n2"))
    run = node.running(world=2)
    run.ranks[0] = RunProcess(exit_code=3, ended_s=node.now_s)
    node.given(*elsewhere)
    assert (node.fact().outcome, node.fact().exit_code) == ("failed", 3)


def test_the_part_of_a_gang_that_fails_as_another_node_has_stopped_is_preempted(node: Node) -> None:
    node.given(joined("n2"), submitted(gpus=2), placed(nodes=("n1", "n2")), started(), started(node_id="n2"))
    run = node.running(world=2)
    run.ranks[0] = RunProcess(exit_code=1, ended_s=node.now_s)
    node.given(leaving("n2"), ended(node_id="n2", outcome="preempted"))
    assert node.fact().outcome == "preempted"


def test_a_node_that_has_had_its_runs_says_that_it_stops_where_it_ends_another_run(node: Node) -> None:
    node.given(submitted(), placed(), started(), leaving("n1", HAS_HAD_ITS_RUNS))
    run = node.running()
    node.observed.draining = True
    node.then(AnnounceLeaving())
    node.given(leaving())
    assert [type(action) for action in node.plan().actions] == [TerminateRun]
    node.observed.runs.pop(run.key)
    node.given(ended(outcome="preempted")).then(WithdrawNode())


def test_a_node_that_has_had_its_runs_stops_without_saying_it_twice(node: Node) -> None:
    node.given(leaving("n1", HAS_HAD_ITS_RUNS))
    node.observed.draining = True
    node.then(WithdrawNode())


def test_a_node_that_joins_again_has_runs_before_it(node: Node) -> None:
    node.given(leaving("n1", HAS_HAD_ITS_RUNS))
    assert node.log.state.spent == {"n1"}
    node.given(joined(incarnation="boot-2"))
    assert not node.log.state.spent


def test_a_node_that_cannot_say_that_it_stops_tells_the_ends_of_its_runs_together_and_then_leaves(node: Node) -> None:
    node.given(submitted("j1"), submitted("j2"), placed("j1"), placed("j2", device=1), started("j1"), started("j2"))
    first, second = node.running("j1"), node.running("j2", device=1)
    node.observed.draining = node.observed.told_leaving = True
    actions = node.plan().actions
    assert [type(action) for action in actions] == [TerminateRun, TerminateRun]
    for run in (first, second):
        run.ending, run.termed_s = "preempted", node.now_s
    first.ranks[0] = RunProcess(exit_code=143, ended_s=node.now_s)
    node.then()
    second.ranks[0] = RunProcess(exit_code=143, ended_s=node.now_s)
    assert [action.fact.outcome for action in node.plan().actions] == ["preempted", "preempted"]  # type: ignore[union-attr]
    node.observed.runs.clear()
    node.given(ended("j1", outcome="preempted"), ended("j2", outcome="preempted")).then(WithdrawNode())


def test_a_draining_node_hands_a_new_lease_back(node: Node) -> None:
    node.given(submitted(), placed(), leaving())
    node.observed.draining = True
    fact = node.fact()
    assert (fact.outcome, fact.reason) == ("preempted", "node n1 is shutting down")


# --- sharing
LANE = {"sharing": "lane"}


def test_a_job_that_takes_turns_starts_when_it_has_its_lanes(node: Node) -> None:
    node.given(submitted(**LANE), placed()).then(RequestLanes(job_id="j1"))
    node.observed.shared["j1", 1] = SharingProgress("waits", "a lane closes at its next boundary")
    node.then()
    node.observed.shared["j1", 1] = SharingProgress("in")
    node.then(StartRun(job_id="j1"))


def test_jobs_that_take_turns_start_beside_each_other(node: Node) -> None:
    node.given(submitted("j1", **LANE), submitted("j2", **LANE), placed("j1"), placed("j2"), started("j1"))
    node.running("j1").sharing = "lane"
    node.then(RequestLanes(job_id="j2"))


def test_a_job_that_is_too_large_for_its_lanes_fails_with_the_reason(node: Node) -> None:
    node.given(submitted(**LANE), placed())
    node.observed.shared["j1", 1] = SharingProgress("refused", "it needs 9 GiB; the device has 8 GiB")
    fact = node.fact()
    assert (fact.outcome, fact.reason) == ("failed", "it needs 9 GiB; the device has 8 GiB")


def test_a_job_that_has_to_leave_its_lanes_is_asked_to_save_first(node: Node) -> None:
    node.given(submitted(**LANE), placed(), started())
    run = node.running()
    run.sharing, run.ranks[0].greeted = "lane", True
    node.observed.shared["j1", 1] = SharingProgress("leaving", "others lack 3 MiB")
    node.then(AskToStop(job_id="j1", epoch=1, ending="preempted", why="others lack 3 MiB"))
    run.asked_s, run.ending, run.why = node.now_s, "preempted", "others lack 3 MiB"
    run.ranks[0] = RunProcess(exit_code=75, ended_s=node.now_s + 1, greeted=True, leaving=True)
    fact = node.fact()
    assert (fact.outcome, fact.reason) == ("preempted", "others lack 3 MiB")


def test_parts_of_a_device_are_had_side_by_side_and_at_once(node: Node) -> None:
    part = {"sharing": "fraction", "fraction": 0.5}
    node.given(submitted("j1", **part), submitted("j2", **part), placed("j1"), placed("j2"))
    node.then(StartRun(job_id="j1"), StartRun(job_id="j2"))


@pytest.mark.parametrize(("first", "second"), [("lane", "fraction"), ("exclusive", "lane"), ("lane", "exclusive")])
def test_whoever_shares_a_device_shares_it_in_one_way(node: Node, first: str, second: str) -> None:
    node.given(submitted("j1", sharing=first), submitted("j2", sharing=second), placed("j1"), placed("j2"))
    node.given(started("j1"))
    node.running("j1").sharing = first
    node.observed.shared["j2", 1] = SharingProgress("in")
    node.then()


def test_a_sample_of_a_job_that_takes_turns_has_its_device_alone(node: Node) -> None:
    spec = JobSpec(name="s", command=("true",), sharing="lane")
    sample = ProfileSample(sample_id="s1", kind="fast", iterations=5)
    node.given(SamplesRequested(key="k", spec=spec, samples=(sample,), at_s=1.0), placed("s1"))
    node.then(StartRun(job_id="s1"))


@pytest.mark.parametrize("ending", ["memory", "hang"])
def test_a_run_that_was_ended_for_what_it_did_has_failed_and_says_so(node: Node, ending: str) -> None:
    node.given(submitted(), placed(), started())
    run = node.running()
    run.ending, run.why, run.killed_s = ending, "it holds too much", node.now_s
    run.ranks[0] = RunProcess(exit_code=137, ended_s=node.now_s)
    fact = node.fact()
    assert (fact.outcome, fact.exit_code, fact.reason) == ("failed", 137, "it holds too much")


# --- always
HISTORY = [
    submitted("j1"),
    submitted("j2"),
    submitted("j3", sharing="lane"),
    submitted("j4", sharing="lane"),
    submitted("j5", sharing="fraction", fraction=0.5),
    *(placed(f"j{n}") for n in range(1, 6)),
    placed("j2", device=1),
    started("j1"),
    preempted("j1"),
    cancelled("j2"),
    ended("j1"),
    ended("j1", outcome="preempted"),
    placed("j1", epoch=2, device=1),
    lost(),
    joined(),
]


@given(st.lists(st.sampled_from(HISTORY), max_size=16))
def test_no_device_is_ever_given_to_two_runs_that_do_not_share_it(facts: list[AnyEvent]) -> None:
    node = Node().given(joined(), *facts)
    for _ in range(4):
        for action in node.plan().actions:
            if isinstance(action, RequestLanes):
                node.observed.shared[action.job_id, node.log.state.jobs[action.job_id].epoch] = SharingProgress("in")
            if isinstance(action, StartRun):
                job = node.log.state.jobs[action.job_id]
                taken, devices = node.observed.busy_devices(), machine.devices_of(job, "n1")
                ways = {taken[index] for index in devices if index in taken}
                assert not ways or (ways == {job.spec.sharing} and job.spec.sharing != "exclusive")
                run = node.running(job.id, job.epoch)
                run.devices, run.sharing = devices, job.spec.sharing
    node.log.decision()  # which also holds replays and snapshots against the live state
