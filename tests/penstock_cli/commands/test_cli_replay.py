"""`penstock replay`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from fake_gateway import FakeGateway

from penstock.client import Client
from penstock_bus import Append
from penstock_cli.replay_run import ReplayPlan
from penstock_simulator.engine.simulation import simulate
from penstock_simulator.replay.replay import Replay
from penstock_simulator.trace import Trace
from penstock_simulator.traces import log_file
from penstock_simulator.virtual_cluster import parse

pytestmark = pytest.mark.slow

Run = Callable[..., tuple[int, str, str]]
JOBS = 16


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small cluster's past: two nodes, two teams, more work than devices."""
    rng = np.random.default_rng(5)
    trace = Trace(
        name="test",
        job_ids=[f"j{row:02d}" for row in range(JOBS)],
        submit_s=np.cumsum(rng.exponential(6.0, JOBS)),
        num_gpus=np.ones(JOBS, np.int64),
        duration_s=rng.lognormal(3.0, 1.0, JOBS),
        vcs=rng.choice(["red", "blue"], JOBS).tolist(),
        users=rng.choice(["ada", "bob"], JOBS).tolist(),
    )
    path = tmp_path_factory.mktemp("past") / "past.jsonl"
    simulate(trace, parse("1x1@fast+1x1@slow"), "fifo-backfill", log=path)
    return path


@pytest.fixture
def replay(penstock: Run, log: Path) -> Run:
    return lambda *args: penstock("replay", "--log", str(log), "--recorded", "fifo-backfill", *args)


def test_the_table_begins_with_what_really_happened(replay: Run) -> None:
    code, out, err = replay("-p", "fifo-backfill,srtf")
    rows = {line.split("  ")[0]: line.split()[-8:] for line in out.splitlines()[1:4]}
    assert (code, err) == (0, "")
    assert list(rows) == ["as it was", "fifo-backfill", "srtf"]
    assert rows["as it was"][:2] == [rows["fifo-backfill"][0], "1.00"]
    assert rows["fifo-backfill"][1] == "1.00"
    assert float(rows["srtf"][1]) < 1
    assert "srtf: average JCT" in out
    assert "95%, percentiles of 2,000 resamples of the jobs, paired, seed 0" in out


def test_teams_users_and_the_jobs_that_gain_and_lose_most_are_told(replay: Run) -> None:
    _, out, _ = replay("-p", "srtf")
    assert "WHO" in out
    assert [line.split()[:2] for line in out.splitlines() if line.startswith("team ")][::2] in (
        [["team", "red"], ["team", "blue"]],
        [["team", "blue"], ["team", "red"]],
    )
    assert "user ada" in out
    assert "gain most:" in out
    assert "lose most:" in out


def test_json_has_exactly_the_documented_form(replay: Run) -> None:
    code, out, _ = replay("-p", "srtf", "-o", "json", "--seed", "3")
    body = json.loads(out)
    assert code == 0
    assert list(body) == [
        "log", "cluster", "from_s", "to_s", "jobs", "completed", "unknown", "seed", "policies", "changes", "check",
    ]  # fmt: skip
    assert (body["log"], body["from_s"], body["to_s"], body["jobs"], body["seed"]) == ("past", None, None, JOBS, 3)
    assert list(body["policies"]) == ["as it was", "srtf"]
    assert list(body["unknown"]) == ["cancelled", "failed", "running", "never_ran"]
    change = body["changes"]["srtf"]
    assert list(change) == [
        "all", "teams", "users", "gained", "lost", "everybody", "unfinished", "resamples", "level",
    ]  # fmt: skip
    everyone = change["all"]
    assert everyone["avg_change_s"] == pytest.approx(everyone["avg_s"] - everyone["was_avg_s"])
    assert everyone["avg_interval_s"]["low"] <= everyone["avg_change_s"] <= everyone["avg_interval_s"]["high"]
    assert body["policies"]["srtf"]["avg_jct_s"] == pytest.approx(everyone["avg_s"])
    assert sum(one["jobs"] for one in change["teams"].values()) == everyone["jobs"] == JOBS
    assert json.loads(replay("-p", "srtf", "-o", "json", "--seed", "3")[1])["changes"] == body["changes"]


def test_the_same_settings_again_are_as_it_was(replay: Run) -> None:
    change = json.loads(replay("-p", "fifo-backfill", "-o", "json")[1])["changes"]["fifo-backfill"]
    assert change["all"]["ratio"] == pytest.approx(1.0, abs=0.01)


def test_without_its_policy_the_replay_of_a_log_is_off_and_gives_no_verdict_on_any(penstock: Run, log: Path) -> None:
    """The log is of `fifo-backfill`, and `srtf` has little in common with that."""
    asked = ("replay", "--log", str(log), "--recorded", "srtf", "-p", "fifo")
    body = json.loads(penstock(*asked, "-o", "json")[1])
    check, change = body["check"], body["changes"]["fifo"]
    assert (check["policy"], check["holds"], check["tolerance"]) == ("srtf", False, 0.05)
    assert check["off"] == pytest.approx(check["avg_s"] / check["was_avg_s"] - 1)
    assert abs(check["off"]) > 0.05
    assert abs(check["differ"][0]["change_s"]) == max(abs(job["change_s"]) for job in check["differ"]) > 1
    everyone = [change["all"], *change["teams"].values(), *change["users"].values()]
    assert {one[name] for one in everyone for name in ("avg_interval_s", "p95_interval_s", "ratio_interval")} == {None}
    out = " ".join(penstock(*asked)[1].split())
    assert "no verdict: replayed under srtf, as it was recorded, the log has an average JCT of" in out
    assert f"so replays are off by {check['off']:+.1%}, more than the 5%" in out
    assert f"These jobs differ most: {check['differ'][0]['id']} (" in out
    assert "no verdict, for the replay itself is off" in out
    assert "contain 0" not in out
    assert "resamples" not in out


def test_the_replay_of_what_was_recorded_says_that_there_is_no_difference(replay: Run) -> None:
    out = " ".join(replay("-p", "fifo-backfill")[1].split())
    assert "so replays are off by +0.0%; up to 5% there are verdicts" in out.replace("-0.0%", "+0.0%")
    assert "no difference, over 16 jobs" in out
    assert "contain 0" not in out


def test_more_devices_and_fewer_nodes(replay: Run) -> None:
    def average_s(*args: str) -> float:
        body = json.loads(replay("-p", "fifo-backfill", "-o", "json", *args)[1])
        return float(body["changes"]["fifo-backfill"]["all"]["avg_s"])

    assert average_s("--cluster", "+8xfast") < average_s() < average_s("--without", "n1")
    _, out, _ = replay("--cluster", "+8xfast")
    assert "on 2 to 10 GPUs" in out


def test_a_folder_takes_the_page_with_its_sections(replay: Run, tmp_path: Path) -> None:
    code, _, err = replay("-p", "srtf", "--set", "min_run_s=1", "--out", str(tmp_path / "out"))
    assert (code, err) == (0, f"penstock: wrote {tmp_path}/out/report.html\n")
    page = (tmp_path / "out/report.html").read_text()
    assert "<h1>Replay: past on its own nodes</h1>" in page
    assert "srtf against what really happened" in page
    assert "Change of the average JCT</h2>" in page
    assert (tmp_path / "out/changes.svg").exists()
    assert re.search(r"penstock replay --policy srtf --set min_run_s=1 --log \S+ --recorded fifo-backfill --out", page)
    assert json.loads((tmp_path / "out/summary.json").read_text())["changes"]["srtf"]["all"]["jobs"] == JOBS
    assert {path.name for path in (tmp_path / "out").glob("jobs-*")} == {"jobs-as-it-was.csv", "jobs-srtf.csv"}


def test_gpus_in_letters_are_shown_of_what_was_and_what_would_be(replay: Run) -> None:
    _, out, _ = replay("-p", "fifo", "--gantt")
    assert "as it was: 2 GPUs; one column is" in out
    assert "fifo: 2 GPUs; one column is" in out


def test_a_settings_file_says_what_the_cluster_had_but_for_what_makes_a_policy(replay: Run, tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text('[ranker]\norder = "fifo"\n[matcher]\nmin_run_s = 0.5\n[other]\nx = 1\n')
    config = ("--config", str(tmp_path / "penstock.toml"))

    def averages_s(*args: str) -> dict[str, float]:
        found = json.loads(replay(*args, "-o", "json")[1])["policies"]
        return {name: one["avg_jct_s"] for name, one in found.items()}

    fifo = averages_s("--set", "order=fifo", "--set", "min_run_s=0.5")["configured"]
    assert averages_s(*config)["configured"] == fifo
    assert (
        averages_s("-p", "srtf", *config)["srtf"] == averages_s("-p", "srtf", "--set", "min_run_s=0.5")["srtf"] < fifo
    )


def test_a_window_is_told_by_sequences_times_and_spans(replay: Run, log: Path) -> None:
    facts = [json.loads(line) for line in log.read_text().splitlines()]
    submitted = [fact for fact in facts if fact["type"].startswith("job.submitted")]
    end_s = max(fact["at_s"] for fact in facts)
    at_s = submitted[6]["at_s"]
    for start in (str(submitted[6]["seq"]), repr(at_s), f"{end_s - at_s + 1e-6:.6f}s"):
        body = json.loads(replay("--from", start, "--to", repr(submitted[10]["at_s"]), "-o", "json")[1])
        assert body["jobs"] == 4, start


REFUSED = {
    ("-p", "fofo"): "there is no policy 'fofo'; expected one of fifo, fifo-backfill",
    ("--set", "threshold=1"): "there is no setting 'threshold'; expected one of",
    ("--set", "min_run_s=soon"): "min_run_s",
    ("--from", "20.5", "--to", "10.5"): "--from 20.5 (20.5) is not before --to 10.5 (10.5); expected the earlier time",
    ("--from", "99999"): "no job that ran was submitted in this window; the 16 of the log were, from 1.0 to",
    ("--to", "0.5"): "give a window that overlaps",
    ("--from", "yesterday"): "--from 'yesterday' is no moment; expected a stream sequence",
    ("--to", "tomorrow"): "--to 'tomorrow' is no moment",
    ("--cluster", "3x4"): "--cluster is '3x4'; expected what is added, such as +8xfast",
    ("--cluster", "+8xh100"): "the log has no device of kind 'h100', so nobody knows how fast jobs are on it",
    ("--without", "n7"): "there is no node 'n7' in the log; expected one of n1, n2",
    ("--without", "n1,n2"): "no node is left to run jobs on",
    ("--config", "none.toml"): "--config none.toml cannot be read: No such file",
    ("--config", "bad.toml"): "--config bad.toml: ",
    ("--config", "odd.toml"): "--config odd.toml: ranker is no table; expected [ranker] with settings",
    ("--log", "none.jsonl"): "there is no file none.jsonl; check the path",
    ("--log", "bad.toml"): "bad.toml: line 1 is no fact of a log",
    ("--log", "empty.jsonl"): "no job of empty.jsonl ever ran; expected a log with at least one run",
    ("--log", "tail.jsonl"): "save all of one with `penstock events --after 0 -f -o json`",
    ("--gantt", "-o", "json"): "--gantt is for people and -o json for programs",
}


@pytest.mark.parametrize("args", REFUSED, ids=" ".join)
def test_what_makes_no_sense_is_refused_in_one_line(
    replay: Run, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    (tmp_path / "bad.toml").write_text("nonsense")
    (tmp_path / "odd.toml").write_text("ranker = 1")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "tail.jsonl").write_text("\n".join(log.read_text().splitlines()[-3:]))
    monkeypatch.chdir(tmp_path)
    code, out, err = replay(*args)
    assert (code, out) == (2, "")
    assert REFUSED[args] in err
    assert err.count("\n") == 1


def test_a_log_that_was_cut_names_what_cannot_be_known(penstock: Run, log: Path, tmp_path: Path) -> None:
    facts = log.read_text().splitlines()
    (tmp_path / "cut").write_text("\n".join(facts[: len(facts) // 2]))
    code, out, _ = penstock("replay", "--log", str(tmp_path / "cut"), "-p", "srtf")
    assert code == 0
    assert "have no true length (" in out
    assert "still running): they run as long as they did, and JCTs leave them out" in out
    assert "jobs never ran (" in out
    assert "Kaplan-Meier" in out
    body = json.loads(penstock("replay", "--log", str(tmp_path / "cut"), "-p", "srtf", "-o", "json")[1])
    assert {one["finished"] for one in body["policies"].values()} == {body["completed"]}
    assert len(body["unknown"]["running"]) == body["jobs"] - body["completed"] > 0
    assert body["changes"]["srtf"]["everybody"]["censored"] == len(body["unknown"]["running"])


class Remembering(FakeGateway):
    """A gateway whose live log is one that was written before."""

    def __init__(self) -> None:
        super().__init__()
        self.past = Path()

    @asynccontextmanager
    async def client(self, url: str = "") -> AsyncIterator[Client]:
        async with super().client(url) as client:
            for delivery in log_file.decode(self.past.read_text().splitlines() if self.past.name else ()):
                await self.bus.append(Append(subject=delivery.subject, commit=delivery.commit, expected=None))
            yield client


@pytest.mark.parametrize("gateway", [Remembering()])
def test_the_live_log_is_read_where_no_file_is_named(
    gateway: Remembering, penstock: Run, replay: Run, log: Path
) -> None:
    assert "no job of the log ever ran" in penstock("replay")[2]
    gateway.past = log
    live = json.loads(penstock("replay", "--recorded", "fifo-backfill", "-p", "srtf", "-o", "json")[1])
    saved = json.loads(replay("-p", "srtf", "-o", "json")[1])
    assert live["log"] == "cluster"
    assert live["changes"] == saved["changes"]


def test_ctrl_c_leaves_the_policies_so_far(replay: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ReplayPlan.run

    def interrupted(plan: ReplayPlan, policy: str, *more: object) -> Replay:
        if policy == "srtf":
            signal.raise_signal(signal.SIGINT)
        return run(plan, policy, *more)  # type: ignore[arg-type] # handed on as they came

    monkeypatch.setattr(ReplayPlan, "run", interrupted)
    code, out, err = replay("-p", "fifo,srtf")
    assert code == 130
    assert "fifo: average JCT" in out
    assert "srtf" not in out
    assert "stopped by Ctrl-C; what is shown are the policies so far" in err
