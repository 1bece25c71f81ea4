"""Submitting: from files, flags and commands to what the gateway is asked, and back to exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

import msgspec
import pytest
from fake_gateway import FakeGateway, why_view

from penstock.gateway_client import GatewayClient
from penstock_bus import Reply
from penstock_bus.logger import get_logger
from penstock_cli import value_formats
from penstock_cli.commands import submit as submitting
from penstock_log import JobSpec, request_bodies, views

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text("print()")
    (tmp_path / "job.toml").write_text('name = "mnist"\ncommand = ["python", "train.py"]\n[params]\nlr = 0.1\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def only(gateway: FakeGateway) -> JobSpec:
    (spec,) = gateway.specs.values()
    return spec


def ends(state: str, exit_code: int | None, reason: str = "") -> Callable[[FakeGateway, str], Awaitable[None]]:
    async def end(gateway: FakeGateway, job_id: str) -> None:
        await gateway.bus.write_output(job_id, 0, b"step 1\n")
        await gateway.finish(job_id, state, exit_code, reason)

    return end


def test_all_behind_the_dashes_is_the_users_command(penstock: Run, gateway: FakeGateway) -> None:
    code, out, err = penstock("submit", "--gpus", "2", "--", "python", "train.py", "--lr", "0.1", "--", "--gpus", "9")
    assert (code, out, err) == (0, "j1\n", "")
    spec = only(gateway)
    assert spec.command == ("python", "train.py", "--lr", "0.1", "--", "--gpus", "9")
    assert (spec.name, spec.gpus) == ("train", 2)


def test_a_job_says_what_it_borrows_by_flags(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("submit", "--local-memory", "2GiB", "--spill", "16G", "--", "true")[0] == 0
    spec = only(gateway)
    assert (spec.local_memory_bytes, spec.spill_bytes, spec.memory) == (2 << 30, 16 << 30, None)
    code, _, err = penstock("submit", "--spill", "much", "--", "true")
    assert (code, "'much' is no amount of memory; expected a number and a unit" in err) == (2, True)


def test_a_job_says_how_it_aggregates_by_flags(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("submit", "--aggregation", "own", "--servers", "2", "--", "true")[0] == 0
    spec = only(gateway)
    assert (spec.aggregation, spec.servers) == ("own", 2)
    assert penstock("submit", "--servers", "0", "--", "true")[0] == 2


def test_a_job_says_by_a_flag_where_its_checkpoints_count(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("submit", "--checkpoint-tier", "memory", "--", "true")[0] == 0
    assert only(gateway).checkpoint_tier == "memory"
    code, _, err = penstock("submit", "--checkpoint-tier", "tape", "--", "true")
    assert (code, "'disk'" in err, "'memory'" in err) == (2, True, True)


def test_a_job_says_by_a_flag_that_it_may_be_idle_and_shows_it(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("submit", "--idle", "allow", "--", "jupyter", "lab")[0] == 0
    assert only(gateway).idle == "allow"
    assert "\nidle:" in penstock("show", "j1")[1]
    assert "allowed, whatever its pool's rule" in penstock("show", "j1")[1]


@pytest.mark.parametrize("text", ["checkpoint = { tier = 'memory' }", "checkpoint_tier = 'memory'"])
def test_the_flag_for_the_checkpoint_tier_wins_over_the_file(
    penstock: Run, gateway: FakeGateway, here: Path, text: str
) -> None:
    (here / "job.toml").write_text(f'name = "mnist"\ncommand = ["python", "train.py"]\n{text}\n')
    assert penstock("submit", "job.toml", "--checkpoint-tier", "disk")[0] == 0
    assert only(gateway).checkpoint_tier == "disk"


def test_flags_win_over_the_file(penstock: Run, gateway: FakeGateway, here: Path) -> None:
    flags = "--name big --gpus 4 --kind fast --kind slow,cpu --memory 8GiB --retries 2 --hold --id mine --pool lab"
    code, out, _ = penstock(
        "submit", "job.toml", *flags.split(), "-p", "width=32", "-e", "MODE=x", "--strict", "--profile=off"
    )
    assert (code, out) == (0, "mine\n")
    spec = only(gateway)
    assert (spec.name, spec.gpus, spec.kinds, spec.memory_bytes) == ("big", 4, ("fast", "slow", "cpu"), 8 << 30)
    assert (spec.retries, spec.hold, spec.id, spec.pool, spec.cwd) == (2, True, "mine", "lab", str(here))
    assert spec.profile == "off"
    assert spec.params == {"lr": 0.1, "width": 32}
    assert spec.env["MODE"] == "x"
    assert isinstance(gateway.asked[0], request_bodies.SubmitRequest)
    assert gateway.asked[0].strict


def test_a_job_asks_for_its_part_of_the_host(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("submit", "--cpus", "2.5", "--host-memory", "40GiB", "--", "true")[0] == 0
    assert (only(gateway).cpus, only(gateway).host_memory_bytes) == (2.5, 40 << 30)
    assert penstock("submit", "--host-memory", "much", "--", "true")[0] == 2


def test_a_job_comes_from_standard_input_too(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("submit", "-", stdin='{"name": "a", "command": ["true"]}')[0] == 0
    assert only(gateway).name == "a"


def test_an_array_is_one_job_for_each_index(penstock: Run, gateway: FakeGateway) -> None:
    code, out, _ = penstock("submit", "--array", "0-1,5", "--id", "exp", "--", "true")
    assert (code, out) == (0, "exp-0\nexp-1\nexp-5\n")
    members = [spec.array for spec in gateway.specs.values()]
    assert [(one.id, one.index, one.count, one.min, one.max, one.step) for one in members if one is not None] == [
        ("exp", index, 3, 0, 5, 1) for index in (0, 1, 5)
    ]


def test_json_output_is_the_answer(penstock: Run) -> None:
    answer = json.loads(penstock("submit", "-o", "json", "--id", "a", "--", "true")[1])
    assert answer == {"id": "a", "seq": 1, "created": True, "warnings": []}


def test_warnings_and_repeated_ids_are_said_beside_the_id(penstock: Run, gateway: FakeGateway) -> None:
    gateway.warnings = ("it can never fit now: 9 devices wanted, 4 there",)
    penstock("submit", "--id", "a", "--", "true")
    code, out, err = penstock("submit", "--id", "a", "--", "true")
    assert (code, out) == (0, "a\n")
    assert err.splitlines() == [
        "penstock: it can never fit now: 9 devices wanted, 4 there",
        "penstock: a was submitted before, with equal content; it is the same job",
    ]


@pytest.mark.parametrize("wait", [(), ("--wait",)])
def test_of_many_files_those_that_cannot_be_used_do_not_keep_the_others(
    penstock: Run, gateway: FakeGateway, here: Path, wait: tuple[str, ...]
) -> None:
    gateway.on_submit = ends("CD", 0)
    (here / "broken.toml").write_text("name = \n")
    (here / "field.toml").write_text('name = "b"\ncommand = ["true"]\ngpu = 2\n')
    (here / "script.toml").write_text('name = "c"\ncommand = ["python", "nope.py"]\n')
    (here / "z.toml").write_text('name = "z"\ncommand = ["true"]\n')
    code, out, err = penstock("submit", *wait, "job.toml", "broken.toml", "field.toml", "script.toml", "z.toml")
    assert (code, out) == (2, "j1\nj2\n")
    assert sorted(spec.name for spec in gateway.specs.values()) == ["mnist", "z"]
    lines = [line for line in err.splitlines() if "completed" not in line]
    assert lines[0].startswith("penstock: broken.toml:1 is not valid TOML")
    assert lines[1].startswith("penstock: field.toml:3")
    assert lines[2].startswith("penstock: script.toml: there is no script")
    assert lines[3:] == ["penstock: 3 of 5 files cannot be used, as said above"]
    assert err.count("completed") == 2 * len(wait)


def test_the_same_mistake_of_many_files_is_told_once_and_many_mistakes_are_no_flood(penstock: Run, here: Path) -> None:
    for number in range(80):
        (here / f"{number}.toml").write_text('name = "a"\ncommand = ["true"]\ngpu = 2\n')
        (here / f"other{number}.toml").write_text(f'name = "a"\ncommand = ["true"]\ngpu{number} = 2\n')
    code, out, err = penstock("submit", *(f"{number}.toml" for number in range(80)))
    said, last = err.splitlines()
    assert (code, out) == (2, "")
    assert said.startswith("penstock: 0.toml:3: gpu: ")
    assert said.endswith(" (and so in 1.toml, 2.toml, 3.toml and 76 more)")
    assert last == "penstock: none of 80 files can be used; nothing was submitted"
    *lines, more, _ = penstock("submit", *(f"other{number}.toml" for number in range(80)))[2].splitlines()
    assert len(lines) == 10
    assert more == "penstock: 70 more files have other mistakes; correct these first"


def test_a_refused_job_beside_a_file_that_cannot_be_used_is_told_too(
    penstock: Run, gateway: FakeGateway, here: Path
) -> None:
    (here / "broken.toml").write_text("name = \n")
    (here / "no.toml").write_text('name = "no"\ncommand = ["true"]\n')
    gateway.refused = {"no": "you have 10,000 open jobs"}
    code, out, err = penstock("submit", "broken.toml", "job.toml", "no.toml", "-o", "json")
    assert (code, json.loads(out)["id"]) == (2, "j1")
    assert "penstock: no: you have 10,000 open jobs" in err


def test_where_no_file_can_be_used_nothing_is_asked(penstock: Run, gateway: FakeGateway, here: Path) -> None:
    (here / "broken.toml").write_text("name = \n")
    code, out, err = penstock("submit", "broken.toml", "none.toml")
    assert (code, out, gateway.asked) == (2, "", [])
    assert err.endswith("penstock: none of 2 files can be used; nothing was submitted\n")


def test_what_is_wrong_with_a_flag_is_told_once_for_all_files(penstock: Run, here: Path) -> None:
    (here / "other.toml").write_text('name = "b"\ncommand = ["true"]\n')
    code, _, err = penstock("submit", "--name", "no way", "job.toml", "other.toml")
    assert (code, err.count("name (given on the command line)"), "(and so in other.toml)" in err) == (2, 1, True)


def test_a_warning_about_many_jobs_is_said_once(penstock: Run, gateway: FakeGateway) -> None:
    gateway.warnings = ("there is no device of kind h100 now",)
    code, out, err = penstock("submit", "--array", "0-999", "--", "true")
    assert (code, out.count("\n")) == (0, 1000)
    assert err == "penstock: there is no device of kind h100 now (and for 999 more)\n"


def test_a_conflicting_id_is_exit_code_5(penstock: Run, gateway: FakeGateway) -> None:
    gateway.refusal = Reply(code=409, error="job a is there with other content; choose another id")
    assert penstock("submit", "--id", "a", "--", "true") == (
        5,
        "",
        "penstock: job a is there with other content; choose another id\n",
    )


@pytest.mark.parametrize(
    ("state", "exit_code", "expected", "said"),
    [
        ("CD", 0, 0, "j1 completed"),
        ("F", 3, 3, "j1 failed: it broke"),
        ("F", -9, 137, "j1 failed: it broke"),
        ("F", None, 1, "j1 failed: it broke"),
        ("CA", None, 130, "j1 was cancelled: it broke"),
    ],
)
def test_waiting_returns_the_jobs_exit_code(
    penstock: Run, gateway: FakeGateway, *, state: str, exit_code: int | None, expected: int, said: str
) -> None:
    gateway.on_submit = ends(state, exit_code, "it broke")
    assert penstock("submit", "--wait", "--", "true") == (expected, "j1\n", f"penstock: {said}\n")


@pytest.mark.parametrize(
    ("command", "warned"),
    [
        (("python", "train.py", "--seed", "$PENSTOCK_ARRAY_INDEX"), True),
        (("./train", "--seed=${PENSTOCK_ARRAY_INDEX}"), True),
        (("/bin/bash", "-c", "python train.py --seed $PENSTOCK_ARRAY_INDEX"), False),
        (("python", "train.py", "--price", "$5"), False),
    ],
)
def test_a_variable_of_an_array_that_no_shell_expands_is_warned_of(
    penstock: Run, command: tuple[str, ...], warned: bool
) -> None:
    code, _, err = penstock("submit", "--no-check", "--array", "0-1", "--", *command)
    assert (code, "no shell expands it; have a shell do it: sh -c" in err) == (0, warned)


def test_waiting_for_an_array_returns_the_worst(penstock: Run, gateway: FakeGateway) -> None:
    async def end(gateway: FakeGateway, job_id: str) -> None:
        await gateway.finish(job_id, "F" if job_id == "x-1" else "CD", 4 if job_id == "x-1" else 0)

    gateway.on_submit = end
    assert penstock("submit", "--wait", "--id", "x", "--array", "0-2", "--", "true")[0] == 4


def test_run_shows_the_output_and_exits_as_the_job_did(penstock: Run, gateway: FakeGateway) -> None:
    gateway.on_submit = ends("F", 7, "exit code 7")
    code, out, err = penstock("run", "--", "true")
    assert (code, out) == (7, "step 1\n")
    assert err == "penstock: j1 submitted\npenstock: j1 failed: exit code 7\n"


def test_run_says_why_the_job_waits_and_again_when_the_cause_changes(
    penstock: Run, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: asyncio.Queue[str] = asyncio.Queue()
    heard: list[str] = []

    async def wait(gateway: FakeGateway, job_id: str) -> None:
        why = why_view(gateway.jobs[job_id])
        try:
            async with asyncio.timeout(10):
                heard.append(await said.get())
                heard.append(await said.get())
                gateway.whys[job_id] = msgspec.structs.replace(why, cause="never_fits", evidence="8 wanted, 4 there")
                heard.append(await said.get())
        finally:
            await gateway.finish(job_id)

    monkeypatch.setattr(submitting, "FIRST_LOOK_S", 0.001)
    monkeypatch.setattr(submitting, "NEXT_LOOK_S", 0.001)
    monkeypatch.setattr(submitting, "tell", said.put_nowait)
    gateway.on_submit = wait
    assert penstock("run", "--", "true")[0] == 0
    assert heard == [
        "j1 submitted",
        "j1 waits (capacity): all 2 fast devices run jobs that rank higher; `penstock why j1` says more",
        "j1 waits (never fits): 8 wanted, 4 there; `penstock why j1` says more",
    ]


def test_a_lost_server_is_told_in_a_sentence_and_once(penstock: Run, gateway: FakeGateway) -> None:
    async def lose(gateway: FakeGateway, job_id: str) -> None:
        log = get_logger("penstock.bus")
        log.info("server_found_again", address="nats://a:1")  # with the next token, and nothing was lost
        log.warning("bus_error", error="nats: unexpected EOF")
        log.warning("server_lost", address="nats://a:1")
        log.info("server_found_again", address="nats://a:1")
        await gateway.finish(job_id)

    gateway.on_submit = lose
    assert penstock("submit", "--wait", "--", "true") == (
        0,
        "j1\n",
        "penstock: lost the server at nats://a:1; trying again\npenstock: connected to nats://a:1 again\n"
        "penstock: j1 completed\n",
    )


def test_an_interrupted_run_cancels_the_job_and_waits_for_its_end(penstock: Run, gateway: FakeGateway) -> None:
    async def interrupt(_: FakeGateway, __: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    gateway.on_submit = interrupt
    code, _, err = penstock("run", "--", "true")
    assert code == 130
    assert gateway.jobs["j1"].state == "CA"
    assert "cancelling j1; Ctrl-C again leaves at once" in err


@pytest.mark.parametrize("sent", [(signal.SIGTERM,), (signal.SIGHUP,), (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)])
def test_a_run_that_is_ended_by_a_signal_cancels_its_job_and_leaves_whether_it_ends_or_not(
    penstock: Run, gateway: FakeGateway, sent: tuple[signal.Signals, ...]
) -> None:
    async def end(_: FakeGateway, __: str) -> None:
        for signum in sent:
            os.kill(os.getpid(), signum)
            await asyncio.sleep(0)

    gateway.on_submit = end
    code, _, err = penstock("run", "--", "true")
    assert code == 128 + sent[0]
    assert gateway.jobs["j1"].state == "CA"
    assert err.endswith("cancelling j1\n")


def test_a_run_that_a_hangup_ends_says_so_also_where_its_job_ends_before_the_gateway_answers(
    penstock: Run, gateway: FakeGateway
) -> None:
    async def hang_up(_: FakeGateway, __: str) -> None:
        os.kill(os.getpid(), signal.SIGHUP)

    gateway.on_submit, gateway.turns_until_cancelled = hang_up, 1000
    assert penstock("run", "--", "true")[0] == 128 + signal.SIGHUP
    assert gateway.jobs["j1"].state == "CA"


def test_a_hangup_that_nohup_has_ignored_stays_so(penstock: Run, gateway: FakeGateway) -> None:
    async def hang_up(gateway: FakeGateway, job_id: str) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await gateway.finish(job_id)

    gateway.on_submit = hang_up
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert penstock("run", "--", "true")[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)
    assert gateway.jobs["j1"].state == "CD"


def test_a_dry_run_submits_nothing(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("submit", "--dry-run", "--", "true") == (
        0,
        "would start at once on n1/fast0,fast1 (fast)\n",
        "",
    )
    gateway.dry = views.DryRunView(starts=False, cause="never_fits", evidence="8 wanted, 4 there", remedy="ask for 4")
    assert penstock("submit", "--dry-run", "job.toml")[1] == (
        "would wait: never fits\n  because:  8 wanted, 4 there\n  change:   ask for 4\n"
    )
    gateway.dry = views.DryRunView(
        starts=False, start_in_s=75.0, basis="2 jobs by declared duration", cause="capacity", evidence="all busy"
    )
    assert penstock("submit", "--dry-run", "job.toml")[1] == (
        "would wait: capacity\n"
        "  because:  all busy\n"
        "  starts:   in about 1m15s (an estimate: 2 jobs by declared duration)\n"
    )
    assert gateway.specs == {}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("submit",), "there is no job; give a file, or a command behind --: penstock submit -- python train.py"),
        (
            ("submit", "--", "python", "nope.py"),
            "there is no script {here}/nope.py; check the path, or give --no-check",
        ),
        (("submit", "train.py"), "train.py has the suffix '.py'; expected .toml, .yaml, .yml, .json; for a plain"),
        (
            ("submit", "nope.sh"),
            "there is no file nope.sh; check the path (a job file ends in .toml, .yaml, .yml, .json",
        ),
        (("submit", "a", "b"), "'a b': expected one file; put -- before a command: penstock submit -- a b"),
        (("submit", "none.toml"), "none.toml cannot be read (No such file or directory); check the path"),
        (("submit", "--memory", "lots", "--", "true"), "'lots' is no amount of memory; expected a number and a unit"),
        (("submit", "--param", "lr", "--", "true"), "--param 'lr' is no pair; expected NAME=VALUE"),
        (("submit", "--env", "NOT_SET_HERE", "--", "true"), "--env NOT_SET_HERE is not set in this shell; set it"),
        (("submit", "--array", "3-1", "--", "true"), "--array '3-1' is empty or too long"),
        (("submit", "--array", "x", "--", "true"), "--array 'x' is no list of indices; expected such as 0-9"),
        (("submit", "--name", "no way", "--", "true"), "name (given on the command line): expected 1 to 63 letters"),
    ],
)
def test_what_cannot_be_submitted_is_told_in_one_line(
    penstock: Run, gateway: FakeGateway, here: Path, args: tuple[str, ...], expected: str
) -> None:
    code, out, err = penstock(*args)
    assert (code, out) == (2, "")
    assert err.startswith(f"penstock: {expected.format(here=here)}")
    assert err.count("\n") == 1
    assert gateway.asked == []


@pytest.mark.parametrize("option", ["--image", "--workdir", "--array", "--after", "--name", "--pool", "--env"])
def test_an_empty_value_is_no_value_left_out(penstock: Run, gateway: FakeGateway, option: str) -> None:
    for words in ([option, ""], [f"{option}="]):
        code, out, err = penstock("submit", *words, "--", "true")
        assert (code, out, gateway.specs) == (2, "", {})
        assert err.startswith(f"penstock: {option} is empty; give it a value")
    if option != "--array":
        assert penstock("run", option, "", "--", "true")[0] == 2
        assert penstock("shell", option, "", "--", "true")[0] == 2
    assert gateway.asked == []


def test_zero_devices_are_refused_by_the_flag_itself(penstock: Run) -> None:
    code, out, err = penstock("submit", "--gpus", "0", "--", "true")
    assert (code, out) == (2, "")
    assert err.startswith("penstock: --gpus: expected a whole number from 1 to 65536, or a range such as")
    assert err.count("\n") == 1


def test_a_script_that_only_the_nodes_have_may_be_submitted(penstock: Run) -> None:
    assert penstock("submit", "--no-check", "--", "python", "nope.py")[0] == 0


def test_what_a_job_waits_for_and_how_long_it_may_run_is_typed_as_for_slurm(
    penstock: Run, gateway: FakeGateway
) -> None:
    words = ("-d", "afterok:j1:J2,afterany:j3", "--after", "j4", "-t", "1-06:30:00", "--begin", "2030-01-31T18:00Z")
    assert penstock("submit", *words, "--", "true")[0] == 0
    spec = only(gateway)
    assert spec.after == ("afterok:j1", "afterok:j2", "afterany:j3", "afterok:j4")
    assert (spec.time_limit_s, spec.begin_s) == (109_800.0, 1_896_112_800.0)
    for words, says in (
        (("-d", "before:j1"), "expected after, afterok, afterany, afternotok, aftercorr, each with :ID"),
        (("--after", "afterok:"), "expected after, afterok, afterany, afternotok, aftercorr, each with :ID"),
        (("--time", "soon"), "--time 'soon' is no duration"),
        (("--time", "9" * 9), "expected 11,574 days at most; 0 or UNLIMITED is no limit"),
        (("--begin", "25:00"), "--begin '25:00' is no time; expected such as 2h or now+5minutes (from now), 18:00"),
        (("--begin", "5"), "--begin '5' is no time"),
    ):
        code, _, err = penstock("submit", *words, "--", "true")
        assert (code, says in err) == (2, True), err


@pytest.mark.parametrize("typed", ["UNLIMITED", "0", "infinite"])
def test_no_time_limit_is_typed_as_for_slurm_and_wins_over_the_file(
    penstock: Run, gateway: FakeGateway, here: Path, typed: str
) -> None:
    (here / "limited.toml").write_text('name = "a"\ncommand = ["true"]\ntime_limit_s = 60\n')
    assert penstock("submit", "--time", typed, "limited.toml")[0] == 0
    assert only(gateway).time_limit_s == 0.0


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("18:00", "2026-03-10 18:00:00"),
        ("9:30:05", "2026-03-11 09:30:05"),
        ("12:00", "2026-03-11 12:00:00"),
        ("tomorrow", "2026-03-11 00:00:00"),
        ("now", "2026-03-10 12:00:00"),
        ("now+5minutes", "2026-03-10 12:05:00"),
        ("now + 1hour", "2026-03-10 13:00:00"),
        ("2 Days", "2026-03-12 12:00:00"),
        ("now+1week", "2026-03-17 12:00:00"),
        ("now+90", "2026-03-10 12:01:30"),
        ("2026-03-10T18:00", "2026-03-10 18:00:00"),
    ],
)
def test_a_job_begins_at_a_time_that_people_type(typed: str, expected: str) -> None:
    noon = datetime.fromisoformat("2026-03-10 12:00").timestamp()
    assert value_formats.begin_s(typed, noon) == datetime.fromisoformat(expected).timestamp()


def test_extending_by_no_time_is_refused_and_to_no_limit_is_not(penstock: Run, gateway: FakeGateway) -> None:
    code, _, err = penstock("extend", "j1", "UNLIMITED")
    assert (code, "'UNLIMITED' is no time to add; expected such as 30m" in err, gateway.asked) == (2, True, [])


def test_every_field_of_a_job_that_people_choose_has_a_flag(penstock: Run, gateway: FakeGateway) -> None:
    words = ("--processes", "node", "--grace", "30s", "--backoff", "5s", "--checkpoint-every", "10m")
    words += ("--begins-from", "j1", "--keep-checkpoint")
    assert penstock("submit", *words, "--sharing", "lane", "--sharers", "3", "--", "true")[0] == 0
    spec = only(gateway)
    assert (spec.processes, spec.grace_s, spec.backoff_s, spec.checkpoint_s) == ("node", 30.0, 5.0, 600.0)
    assert (spec.begins_from, spec.keep_checkpoint, spec.sharers) == ("j1", True, 3)
    assert penstock("submit", "--id", "none", "--checkpoint-every", "0", "--", "true")[0] == 0
    assert gateway.specs["none"].checkpoint_s == 0.0


@pytest.mark.parametrize("wait", [(), ("--wait",)])
def test_who_interrupts_a_submission_is_told_whether_the_job_was_submitted(
    penstock: Run, gateway: FakeGateway, here: Path, wait: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = gateway._submit

    async def interrupt(asked: request_bodies.SubmitRequest) -> views.SubmitAnswer:
        await accept(asked)
        os.kill(os.getpid(), signal.SIGINT)
        return await asyncio.Future()  # no answer comes

    monkeypatch.setattr(gateway, "_submit", interrupt)
    code, out, err = penstock("submit", *wait, "job.toml")
    assert (code, out) == (130, "")
    assert err == "penstock: interrupted: j1 was submitted and goes on; end it with `penstock cancel j1`\n"


def test_who_interrupts_before_the_gateway_was_asked_has_submitted_nothing(
    penstock: Run, gateway: FakeGateway, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(GatewayClient, "_with_code", interrupted)
    for command in ("submit", "run"):
        code, out, err = penstock(command, "job.toml")
        assert (code, out, gateway.asked) == (130, "", [])
        assert err == "penstock: interrupted: nothing was submitted\n"
