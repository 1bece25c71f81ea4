"""Jobs that go on from another job's checkpoint, and metrics that are no numbers any more."""

from __future__ import annotations

from pathlib import Path

from penstock.sessions.setup import read
from penstock_executor import gang, run_state
from penstock_executor.launchers import environment
from penstock_executor.machine import ExecutorState, apply
from penstock_executor.run_state import LocalRun, RunProcess
from penstock_log import (
    Device,
    Job,
    JobCancelled,
    JobSpec,
    JobSubmitted,
    Placement,
    ProfileSample,
    RunEnded,
    Slot,
    SweepFinished,
)
from penstock_log.agent_protocol import AgentEnv, SessionDone, StepProgress
from penstock_log.aggregation_messages import run_token


def spec(job_id: str, **fields: object) -> JobSpec:
    return JobSpec(**{"name": "t", "command": ("true",), "id": job_id, **fields})


def state_after(*specs: JobSpec) -> ExecutorState:
    state = ExecutorState()
    for number, one in enumerate(specs):
        apply(state, JobSubmitted(at_s=1.0, job_id=one.id, spec=one), number)
        apply(state, JobCancelled(at_s=2.0, job_id=one.id), number)
    return state


def test_checkpoints_that_others_may_go_on_from_are_kept_until_the_sweep_is_over():
    state = state_after(spec("a", parent="s1", keep_checkpoint=True), spec("b", parent="s1"))
    assert (state.finished, state.kept) == (["b"], {"s1": ["a"]})
    apply(state, SweepFinished(at_s=3.0, sweep_id="s2", state="completed"), 9)
    assert state.kept == {"s1": ["a"]}
    apply(state, SweepFinished(at_s=3.0, sweep_id="s1", state="completed"), 9)
    assert (state.finished, state.kept) == (["b", "a"], {})


def test_checkpoints_that_its_user_wants_to_keep_are_never_given_up():
    assert state_after(spec("a", keep_checkpoint=True)).finished == []


def test_a_process_finds_where_to_begin_and_whether_to_save_at_its_end(tmp_path: Path):
    site = environment.LaunchSite(
        node_id="n1",
        devices=(Device(index=0, kind="cpu", memory_bytes=1, backend="cpu"),),
        socket="s",
        checkpoints=tmp_path,
        cwd="",
    )

    def found(**fields: object) -> dict[str, str]:
        placement = Placement(job_id="b", epoch=1, kind="cpu", slots=(Slot(node_id="n1", devices=(0,)),))
        job = Job(id="b", spec=spec("b", **fields), submitted_s=0.0, placement=placement)
        return environment.environment_of(job, environment.members(placement, "device")[0], site, {})

    env = found(begins_from="a", keep_checkpoint=True)
    assert (env[AgentEnv.BEGIN_DIR], env[AgentEnv.SAVE_AT_END]) == (str(tmp_path / "a"), "1")
    assert not {AgentEnv.BEGIN_DIR, AgentEnv.SAVE_AT_END} & found().keys()


def test_a_process_finds_how_many_runs_began_before_and_how_long_they_ran_whatever_the_epoch(tmp_path: Path):
    site = environment.LaunchSite(node_id="n1", devices=(), socket="s", checkpoints=tmp_path, cwd="")
    placement = Placement(job_id="b", epoch=4, kind="cpu", slots=(Slot(node_id="n1", devices=(0,)),))

    def found(**fields: object) -> tuple[str, str]:
        job = Job(id="b", spec=spec("b"), submitted_s=0.0, placement=placement, executed_s=12.5, **fields)
        env = environment.environment_of(job, environment.members(placement, "device")[0], site, {})
        return env[AgentEnv.STARTS], env[AgentEnv.EXECUTED_S]

    assert found(attempts=2) == ("2", "12.500")
    assert found(attempts=3, started_s=20.0) == ("2", "12.500")  # this run has begun on another node already


def test_a_process_finds_its_nodes_aggregation_agent_by_a_token_of_its_run_and_a_sample_finds_none(tmp_path: Path):
    site = environment.LaunchSite(
        node_id="n1",
        devices=(Device(index=0, kind="cpu", memory_bytes=1, backend="cpu"),),
        socket="s",
        checkpoints=tmp_path,
        cwd="",
        aggregation=str(tmp_path / "a" / "aggregator.sock"),
        aggregation_secret=b"secret",
    )

    def found(epoch: int, sample: ProfileSample | None = None) -> dict[str, str]:
        placement = Placement(job_id="b", epoch=epoch, kind="cpu", slots=(Slot(node_id="n1", devices=(0,)),))
        job = Job(id="b", spec=spec("b"), submitted_s=0.0, placement=placement, sample=sample)
        return environment.environment_of(job, environment.members(placement, "device")[0], site, {})

    first = found(1)
    assert first["PENSTOCK_AGGREGATION_SOCKET"] == site.aggregation
    assert first["PENSTOCK_AGGREGATION_TOKEN"] == run_token(b"secret", "b", 1) != found(2)["PENSTOCK_AGGREGATION_TOKEN"]
    sampled = found(1, ProfileSample(sample_id="b", kind="cpu", iterations=5))
    assert not [name for name in sampled if "AGGREGATION" in name]


def test_a_metric_that_is_no_number_any_more_has_no_value_from_before():
    run = LocalRun(job_id="a", epoch=1, ranks={0: RunProcess(exit_code=0, ended_s=2.0)}, world_size=1)
    gang.note_message(run, 0, StepProgress(step=1, loop_steps=1, loop_s=1.0, metrics={"loss": 0.5, "acc": 0.9}))
    gang.note_message(run, 0, SessionDone(step=2, loop_steps=2, loop_s=2.0, metrics={"acc": 0.8}, diverged=("loss",)))
    reported = run_state.ended(run, Job(id="a", spec=spec("a"), submitted_s=0.0), "n1", 3.0, 60.0)
    assert isinstance(reported, RunEnded)
    assert (reported.metrics, reported.diverged) == ({"acc": 0.8}, ("loss",))


def test_a_process_finds_how_its_job_aggregates(tmp_path: Path):
    site = environment.LaunchSite(node_id="n1", devices=(), socket="s", checkpoints=tmp_path, cwd="")
    placement = Placement(job_id="b", epoch=1, kind="cpu", slots=(Slot(node_id="n1", devices=(0,)),))
    job = Job(id="b", spec=spec("b", aggregation="own", servers=3), submitted_s=0.0, placement=placement)
    found = environment.environment_of(job, environment.members(placement, "device")[0], site, {})
    assert (found["PENSTOCK_AGGREGATION"], found["PENSTOCK_AGGREGATION_SERVERS"]) == ("own", "3")
    setup = read(found)
    assert (setup.aggregation, setup.aggregation_servers) == ("own", 3)


def test_a_process_finds_what_its_job_says_of_borrowed_memory_for_each_of_its_devices(tmp_path: Path):
    devices = tuple(Device(index=index, kind="cpu", memory_bytes=1, backend="cpu") for index in range(2))
    site = environment.LaunchSite(node_id="n1", devices=devices, socket="s", checkpoints=tmp_path, cwd="")
    placement = Placement(job_id="b", epoch=1, kind="cpu", slots=(Slot(node_id="n1", devices=(0, 1)),))

    def found(processes: str, **fields: object) -> dict[str, str]:
        env = {AgentEnv.MEMORY_SPILL: "7"}
        job = Job(id="b", spec=spec("b", gpus=2, env=env, **fields), submitted_s=0.0, placement=placement)
        member = environment.members(placement, processes)[0]
        return environment.environment_of(job, member, site, {})

    each = found("device", local_memory_bytes=100, spill_bytes=1000)
    assert (each["PENSTOCK_MEMORY_LOCAL"], each["PENSTOCK_MEMORY_SPILL"]) == ("100", "1000")
    both = found("node", local_memory_bytes=100, spill_bytes=1000)
    assert (both["PENSTOCK_MEMORY_LOCAL"], both["PENSTOCK_MEMORY_SPILL"]) == ("200", "2000")
    silent = found("device")
    assert (AgentEnv.MEMORY_LOCAL in silent, silent[AgentEnv.MEMORY_SPILL]) == (False, "7")
