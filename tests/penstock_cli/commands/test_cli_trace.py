"""``penstock trace``: what people type about workloads, and what they read."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from fake_gateway import FakeGateway

from penstock.client import Client, facts
from penstock_log import AnyEvent, JobSpec, JobSubmitted, RoundDecided, RunEnded, RunStarted
from penstock_log.decision_facts import Placement, Slot
from penstock_testing import delivery

Run = Callable[..., tuple[int, str, str]]

PLAIN = "job_id,submit_s,num_gpus,duration_s,user\na,0,1,3600,ann\nb,1800,0,5,ann\nc,3600,4,1800,bob\nd,7200,1,60,bob\n"
SLOT = Slot(node_id="n1", devices=(0,))
HISTORY: tuple[AnyEvent, ...] = (
    JobSubmitted(job_id="j1", spec=JobSpec(name="train", command=("true",), user="ann", model="bert"), at_s=50.0),
    RoundDecided(pool="default", placements=(Placement(job_id="j1", epoch=1, kind="fast", slots=(SLOT,)),), at_s=60.0),
    RunStarted(job_id="j1", epoch=1, node_id="n1", devices=(0,), at_s=60.0),
    RunEnded(job_id="j1", epoch=1, node_id="n1", outcome="completed", at_s=90.0),
    JobSubmitted(job_id="j2", spec=JobSpec(name="wait", command=("true",)), at_s=95.0),
)


class Remembering(FakeGateway):
    """A gateway whose log holds facts already."""

    def __init__(self, facts: Sequence[AnyEvent]) -> None:
        super().__init__()
        self._facts = facts

    @asynccontextmanager
    async def client(self, url: str = "") -> AsyncIterator[Client]:
        async with super().client(url) as client:
            for fact in self._facts:
                await self.append(fact)
            yield client


@pytest.fixture
def plain(tmp_path: Path) -> str:
    (tmp_path / "plain.csv").write_text(PLAIN)
    return str(tmp_path / "plain.csv")


def test_info_tells_jobs_drops_span_load_and_sizes(penstock: Run, plain: str) -> None:
    code, out, _ = penstock("trace", "info", plain, "--gpus", "2")
    assert code == 0
    lines = {line.split(":")[0]: line.partition(":")[2].strip() for line in out.splitlines() if ":" in line}
    assert (lines["rows"], lines["jobs"], lines["dropped"]) == ("4", "3", "1 zero GPUs")
    assert lines["span"] == "2h00m, 1.5 jobs an hour"
    assert lines["load on 2"] == "0.754"
    assert lines["users"] == "2, by device time, with jobs: bob 2, ann 1"
    assert out.splitlines()[-1].split() == ["4", "1", "33.3%", "2.0", "66.3%"]


def test_info_as_json_has_the_same_figures(penstock: Run, plain: str) -> None:
    found = json.loads(penstock("trace", "info", plain, "--gpus", "2", "-o", "json")[1])
    assert (found["jobs"], found["dropped"], found["gpus"][1]["gpus"]) == (3, {"zero GPUs": 1}, 4)
    assert found["load"]["2"] == pytest.approx(0.7541667)


def test_convert_there_and_back_keeps_the_jobs(penstock: Run, plain: str, tmp_path: Path) -> None:
    ours, back = str(tmp_path / "t.jsonl.gz"), str(tmp_path / "back.csv")
    assert penstock("trace", "convert", plain, ours) == (
        0,
        "",
        f"penstock: wrote {ours}: 3 jobs (dropped: 1 zero GPUs)\n",
    )
    assert penstock("trace", "convert", ours, back, "--from", "penstock", "--to", "csv")[0] == 0
    assert Path(back).read_text() == "".join(line + "\n" for line in PLAIN.splitlines() if not line.startswith("b,"))


def test_sample_takes_a_window_and_scales_the_load(penstock: Run, plain: str, tmp_path: Path) -> None:
    out = str(tmp_path / "s.csv")
    assert penstock("trace", "sample", plain, out, "--window", "30m-", "--scale-load", "2")[0] == 0
    assert Path(out).read_text().splitlines()[1:] == ["c,3600,4,1800,bob", "d,5400,1,60,bob"]


def test_sample_draws_the_same_jobs_under_the_same_seed(penstock: Run, plain: str, tmp_path: Path) -> None:
    texts = []
    for seed in ("1", "1", "2", "3", "4"):
        assert penstock("trace", "sample", plain, str(tmp_path / "s.csv"), "--jobs", "1", "--seed", seed)[0] == 0
        texts.append((tmp_path / "s.csv").read_text())
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


@pytest.mark.parametrize("text", ["soon", "9d-2d", "1h", "-5m"])
def test_a_window_that_is_none_is_refused(penstock: Run, plain: str, tmp_path: Path, text: str) -> None:
    code, _, err = penstock("trace", "sample", plain, str(tmp_path / "s.csv"), f"--window={text}")
    assert code == 2
    assert "expected" in err


def test_a_broken_row_ends_with_its_line_unless_lenient(penstock: Run, tmp_path: Path) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(PLAIN.replace("c,3600,4", "c,3600,four"))
    code, _, err = penstock("trace", "info", str(path))
    assert (code, "broken.csv:4: num_gpus is 'four'; expected a number" in err) == (2, True)
    code, out, _ = penstock("trace", "info", str(path), "--lenient")
    assert (code, "1 broken row" in out) == (0, True)


def test_an_empty_file_is_said_to_be_empty(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    code, _, err = penstock("trace", "info", f"{tmp_path}/empty.csv")
    assert (code, "empty.csv is empty; expected rows of jobs" in err) == (2, True)


def test_large_figures_are_written_out(penstock: Run, tmp_path: Path) -> None:
    path = tmp_path / "large.csv"
    path.write_text("job_id,submit_s,num_gpus,duration_s\na,0,1000,7200000\nb,3600,1,3600\n")
    assert "2,000,001 GPU-h: 2,000,001 GPUs busy on average" in penstock("trace", "info", str(path))[1]


def test_generate_writes_a_trace_and_the_models_speeds(penstock: Run, tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(
        'jobs = 20\narrivals = { process = "poisson", rate_per_h = 60 }\n'
        'gpu_time = { distribution = "lognormal", median_s = 60, sigma = 1 }\n'
        'models = [{ name = "bert", speeds = { v100 = 2, k80 = 1 } }]\n'
    )
    texts = []
    for seed in ("1", "1", "2"):
        out, speeds = tmp_path / "t.jsonl", tmp_path / "speeds.json"
        assert (
            penstock(
                "trace", "generate", str(spec), str(out), "--seed", seed, "--jobs", "5", "--speedups", str(speeds)
            )[0]
            == 0
        )
        texts.append(out.read_text())
        assert json.loads(speeds.read_text()) == {"bert": {"v100": 2.0, "k80": 1.0}}
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0].splitlines()) == 6


def test_generate_names_the_key_of_a_mistake(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text("jobs = 0\n")
    code, _, err = penstock("trace", "generate", str(tmp_path / "spec.toml"), str(tmp_path / "t.jsonl"))
    assert (code, "arrivals" in err, "gpu_time" in err) == (2, True, True)


def exported(out: Path) -> list[dict[str, object]]:
    body = out.read_bytes()
    text = gzip.decompress(body) if out.suffix == ".gz" else body
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("gateway", [Remembering(HISTORY)])
def test_export_writes_the_live_log_with_hashes_for_names(penstock: Run, tmp_path: Path) -> None:
    out = tmp_path / "mine.jsonl.gz"
    code, _, err = penstock("trace", "export", str(out))
    assert (code, err) == (0, f"penstock: wrote {out}: 1 job (dropped: 1 never started)\n")
    _, job = exported(out)
    assert (job["submit_s"], job["num_gpus"], job["duration_s"], job["state"]) == (0.0, 1, 30.0, "completed")
    assert not {"ann", "bert", "j1"} & {str(value) for value in job.values()}


@pytest.mark.parametrize("gateway", [Remembering(HISTORY)])
def test_export_keeps_names_where_asked_to(penstock: Run, tmp_path: Path) -> None:
    out = tmp_path / "mine.jsonl"
    assert penstock("trace", "export", str(out), "--no-anonymize")[0] == 0
    _, job = exported(out)
    assert (job["id"], job["user"], job["model"], job["submit_s"]) == ("j1", "ann", "bert", 50.0)


@pytest.mark.parametrize("gateway", [Remembering(HISTORY)])
def test_the_same_key_file_gives_the_same_hashes(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret")
    users = []
    for options in (("--key-file", str(tmp_path / "key")), ("--key-file", str(tmp_path / "key")), ()):
        assert penstock("trace", "export", str(tmp_path / "t.jsonl"), *options)[0] == 0
        users.append(exported(tmp_path / "t.jsonl")[1]["user"])
    assert users[0] == users[1] != users[2]


def test_an_empty_key_is_refused(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("")
    code, _, err = penstock("trace", "export", str(tmp_path / "t.jsonl"), "--key-file", str(tmp_path / "key"))
    assert (code, "expected a key of 1 to 64" in err) == (2, True)


def test_export_of_an_empty_log_writes_no_jobs(penstock: Run, tmp_path: Path) -> None:
    code, _, err = penstock("trace", "export", str(tmp_path / "t.jsonl"))
    assert (code, "0 jobs" in err) == (0, True)


def test_export_takes_saved_events(penstock: Run, tmp_path: Path) -> None:
    events = [view for seq, fact in enumerate(HISTORY, 1) for view in facts(delivery(seq, fact))]
    (tmp_path / "events").write_bytes(b"".join(msgspec.json.encode(view) + b"\n" for view in events))
    code, _, _ = penstock(
        "trace", "export", str(tmp_path / "t.csv"), "--log", str(tmp_path / "events"), "--no-anonymize"
    )
    assert code == 0
    assert (tmp_path / "t.csv").read_text().splitlines()[1] == "j1,50,1,30,ann,bert,completed"
