"""`penstock sim`: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from penstock_cli import render, simulation_plan, simulation_run
from penstock_cli.simulation_arguments import SimulationArguments
from penstock_cli.simulation_run import ReportOptions
from penstock_policies.matching import flow
from penstock_simulator.fast import kernel_state
from penstock_simulator.outcome import Outcome
from penstock_simulator.report import policy_comparison
from penstock_simulator.virtual_cluster import load
from sweeps import sampled

Run = Callable[..., tuple[int, str, str]]

JOBS = "job_id,submit_s,num_gpus,duration_s\na,0,2,100\nb,0,2,10\nc,5,1,50\nd,6,4,20\n"
FIGURES = [
    "jobs", "finished", "in_window", "dropped", "sum_jct_s", "avg_jct_s", "median_jct_s", "p95_jct_s", "p99_jct_s",
    "avg_queue_s", "makespan_s", "utilisation", "preemptions", "promotions", "events", "wall_s", "jobs_per_s",
]  # fmt: skip


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    (tmp_path / "jobs.csv").write_text(JOBS)
    return str(tmp_path / "jobs.csv")


@pytest.fixture
def sim(penstock: Run, jobs: str) -> Run:
    return lambda *args: penstock("sim", jobs, "--cluster", "1x4", *args)


def test_json_has_exactly_the_documented_form(sim: Run) -> None:
    code, out, err = sim("--policy", "fifo", "--policy", "srtf", "-o", "json")
    assert (code, err) == (0, "")
    body = json.loads(out)
    assert list(body) == ["trace", "cluster", "policies"]
    assert (body["trace"], body["cluster"]) == ("jobs", "1x4")
    assert {name: list(figures) for name, figures in body["policies"].items()} == {"fifo": FIGURES, "srtf": FIGURES}
    fifo = body["policies"]["fifo"]  # a and b at 0; c when b ends; d when a has ended
    assert (fifo["sum_jct_s"], fifo["makespan_s"], fifo["finished"]) == (100 + 10 + 55 + 114, 120, 4)


def test_several_policies_are_one_table_with_ratios_to_the_first(sim: Run) -> None:
    code, out, err = sim("-p", "fifo,srtf")
    head, fifo, srtf, note = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["POLICY", "AVG", "RATIO", "MEDIAN", "P95", "QUEUE", "MAKESPAN", "UTIL", "PREEMPT"]
    assert fifo.split()[:3] == ["fifo", "1m10s", "1.00"]
    assert srtf.split()[0] == "srtf"
    assert float(srtf.split()[2]) < 1
    assert note == "ratio: average JCT over that of fifo, on 4 GPUs; less is better"


def test_the_widest_table_fits_eighty_columns() -> None:
    row = ("allox+2d-gittins", "11d10h", "0.999", "59m59s", "11d10h", "11d10h", "132d05h", "100%", "1234567")
    assert max(map(len, render.table(policy_comparison.HEADERS, [row]))) <= 80


def test_gpus_in_letters_are_shown_by_the_deciders(sim: Run) -> None:
    code, out, _ = sim("-p", "fifo-backfill", "--gantt")
    assert code == 0
    assert "a letter is a job" in out
    assert "A=a B=b C=c D=d" in out
    assert len([line for line in out.splitlines() if line.startswith("gpu ")]) == 4


@pytest.mark.slow
def test_a_folder_takes_the_page_and_what_it_rests_on(sim: Run, tmp_path: Path) -> None:
    code, _, err = sim("-p", "fifo,2d-las", "--set", "thresholds_gpu_s=50,100", "--out", str(tmp_path / "out"))
    assert (code, err) == (0, f"penstock: wrote {tmp_path}/out/report.html\n")
    page = (tmp_path / "out/report.html").read_text()
    assert "--policy fifo --policy 2d-las --set thresholds_gpu_s=50,100 --out" in page
    assert json.loads((tmp_path / "out/summary.json").read_text())["policies"]["fifo"]["finished"] == 4
    with (tmp_path / "out/jobs-fifo.csv").open() as file:
        assert [row["end_s"] for row in csv.DictReader(file)] == ["100", "10", "60", "120"]


def test_what_one_simulation_wrote_another_reads(sim: Run, penstock: Run, tmp_path: Path) -> None:
    sim("-p", "fifo", "--out", str(tmp_path / "out"))
    again = penstock("sim", f"{tmp_path}/out/jobs-fifo.csv", "--cluster", "1x4", "-p", "fifo", "-o", "json")
    assert again[0] == 0
    assert json.loads(again[1])["policies"]["fifo"]["sum_jct_s"] == 279


@pytest.mark.parametrize("command", ["story", "why"])
def test_a_compressed_log_is_read_as_one_that_is_not(sim: Run, penstock: Run, tmp_path: Path, command: str) -> None:
    for name in ("log", "log.gz"):
        sim("-p", "fifo", "--log", str(tmp_path / name))
    plain = penstock(command, "d", "--log", f"{tmp_path}/log")
    assert plain == penstock(command, "d", "--log", f"{tmp_path}/log.gz")
    assert (plain[0], "complete" in plain[1]) == (0, True)


def test_a_log_that_is_not_there_is_bad_input(penstock: Run) -> None:
    code, _, err = penstock("story", "j1", "--log", "none.jsonl")
    assert (code, err) == (2, "penstock: there is no file none.jsonl; check the path\n")


@pytest.mark.parametrize(
    ("policies", "compiled"),
    [(("fifo",), ["counting"]), (("srtf", "allox"), ["matching"]), (("elastic",), ["counting"])],
)
def test_the_first_simulation_on_a_machine_says_that_it_compiles(
    jobs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], policies: Any, compiled: list[str]
) -> None:
    kept: list[str] = []
    for name, kernels in (("counting", kernel_state.KERNELS), ("matching", flow.KERNELS)):
        monkeypatch.setattr(kernels, "are_kept", lambda: False)
        monkeypatch.setattr(kernels, "keep_all", lambda _, name=name: kept.append(name))
    planned = simulation_plan.plan(
        SimulationArguments(Path(jobs), cluster="1x4", policies=policies), timeline=False, spells=False
    )
    simulation_run.compile_kernels(planned, says=True)
    assert kept == compiled
    assert capsys.readouterr().err == "penstock: compiling the simulator, once on this machine: about 40 s\n"
    simulation_run.compile_kernels(planned, says=False)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.thorough
def test_policies_in_processes_of_their_own_find_the_same(jobs: str) -> None:
    asked = SimulationArguments(Path(jobs), cluster="1x4", policies=("srtf", "fifo"), processes=2)
    planned = simulation_plan.plan(asked, timeline=False, spells=False)
    with simulation_run.ComputationProgress() as waiting:
        alone = list(simulation_run._one_by_one(planned, waiting))
        together = simulation_run._at_once(planned, waiting)
    assert [one.policy for one in together] == ["srtf", "fifo"]
    assert [one.outcome.end_s.tolist() for one in together] == [one.outcome.end_s.tolist() for one in alone]


REFUSED = {
    ("-p", "fivo"): "there is no policy 'fivo'; expected one of fifo, fifo-backfill",
    ("-p", ","): "no policy is named; expected --policy with some of fifo",
    ("-p", "las", "--set", "threshold=1"): "there is no setting 'threshold'; expected one of",
    ("-p", "las", "--set", "thresholds_gpu_s=9,3"): "thresholds_gpu_s is [9.0, 3.0]; expected rising",
    ("-p", "las", "--set", "promote_knob"): "--set 'promote_knob' is no pair; expected NAME=VALUE",
    ("-p", "las", "--set", "promote_knob=much"): "promote_knob is 'much': Expected `float | null`, got `str`",
    ("-p", "fifo", "--cluster", "3y4"): "cluster is '3y4'; expected NODESxGPUS such as 3x4",
    ("-p", "fifo", "--cluster", "none.toml"): "cluster file none.toml cannot be read",
    ("-p", "fifo", "--cluster", "1x2"): "1 of 4 jobs can never start: the largest asks for 4 GPUs at once",
    ("-p", "fifo", "--placement", "x"): "there is no placement 'x'; expected one of count, yarn, best-fit, consolidate",
    ("-p", "fifo", "--placement", "yarn"): "give --compat tiresias-2019",
    ("-p", "fifo", "--compat", "blox"): "there is no compat mode 'blox'; expected one of tiresias-2019",
    ("-p", "fifo", "--format", "x"): "'x' is no format of traces; expected auto, penstock, log, csv",
    ("-p", "fifo,las", "--log", "log"): "--log takes the log of one policy",
    (
        "-p",
        "allox",
        "--compat",
        "tiresias-2019",
    ): "can only be counted, and --policy allox needs the deciders",
    ("-p", "allox", "--engine", "counted"): "--policy allox needs the deciders",
    ("-p", "las", "--placement", "count", "--engine", "deciders"): "--placement count can only be counted",
    ("-p", "fifo", "--gpu-time-samples", "none"): "--gpu-time-samples none cannot be read: No such file",
    ("-p", "fifo", "--speedups", "none.toml"): "speed-ups none.toml cannot be read",
    ("-p", "fifo", "--gantt", "-o", "json"): "--gantt is for people and -o json for programs",
    ("-p", "fifo", "--out", "jobs.csv"): "--out jobs.csv is a file; expected a folder",
    ("-p", "fifo", "--seeds", "3"): "nothing here goes by chance, so 3 seeds would give the same; give a recipe",
    ("-p", "fifo", "--seed", "1", "--seed", "2", "--seeds", "3"): "--seeds 3 counts from one --seed, and 2 are named",
    ("-p", "fifo", "--seeds", "2", "--log", "log"): "--log takes the log of one policy and seed",
    ("-p", "fifo", "--quota", "none.toml"): "quota file none.toml cannot be read: No such file",
    ("-p", "fifo", "--borrow"): "--borrow and --no-borrow are about quotas; give --quota FILE",
    ("-p", "fifo", "--scaling", "none.toml"): "scaling none.toml cannot be read: No such file",
    ("-p", "fifo", "--set", "most_gpus=4"): "--set most_gpus is of policy elastic, elastic-min-batch",
    ("-p", "elastic", "--profiles", "none.toml"): "profiles none.toml cannot be read: No such file",
    ("-p", "elastic", "--set", "most_gpus=0"): "most_gpus is '0': Expected `int` >= 1",
    ("-p", "las", "--set", "thresholds_gpu_s=1,b"): "thresholds_gpu_s is '1,b': Expected `float`, got `str`; settings",
    ("-p", "allox", "--set", "patience_s=soon"): "patience_s is 'soon': Expected `float`, got `str`",
    ("-p", "fifo", "--log", "none/log"): "there is no folder none; make it first",
    ("-p", "elastic", "--length-error", "0.5"): "--policy elastic can only be counted, and --length-error needs the",
    ("-p", "elastic", "--compat", "tiresias-2019"): "--policy elastic is no part of what was published",
    ("-p", "fifo", "--placement", "consolidate", "--engine", "counted"): "--placement consolidate needs the deciders",
}


@pytest.mark.parametrize("args", REFUSED, ids=" ".join)
def test_what_makes_no_sense_is_refused_in_one_line(
    sim: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = sim(*args)
    assert (code, out) == (2, "")
    assert REFUSED[args] in err
    assert err.count("\n") == 1


QUOTAS = "[gpus]\na = 2\nb = 2\n"
VIRTUAL = "job_id,submit_s,num_gpus,duration_s,vc\na,0,2,100,a\nb,0,2,100,a\nc,20,1,50,b\n"
RECIPE = """
jobs = 40
seed = 5
gpus = { counts = [1, 2], weights = [0.8, 0.2] }
arrivals = { process = "poisson", rate_per_h = 120 }
gpu_time = { distribution = "lognormal", median_s = 60, sigma = 1 }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vcs.csv").write_text(VIRTUAL)
    (tmp_path / "quotas.toml").write_text(QUOTAS)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def figures(penstock: Run, *args: str) -> dict[str, dict[str, float]]:
    code, out, err = penstock("sim", *args, "--cluster", "1x4", "-o", "json")
    assert code == 0, err
    found: dict[str, dict[str, float]] = json.loads(out)["policies"]
    return found


def test_quotas_are_kept_and_lent_where_that_is_asked_for(penstock: Run, folder: Path) -> None:
    args = ("vcs.csv", "-p", "fifo", "--quota", "quotas.toml")
    assert figures(penstock, "vcs.csv", "-p", "fifo")["fifo"]["makespan_s"] == 150
    assert figures(penstock, *args)["fifo"]["makespan_s"] == 200
    assert figures(penstock, *args, "--engine", "deciders")["fifo"]["makespan_s"] == 200
    lent = figures(penstock, *args, "--borrow")["fifo"]
    assert (lent["makespan_s"], lent["preemptions"]) == (150, 1)


def test_a_quota_that_no_job_is_under_is_told(penstock: Run, folder: Path) -> None:
    (folder / "quotas.toml").write_text("[gpus]\na = 2\nb = 1\ntypo = 1\n")
    code, out, _ = penstock("sim", "vcs.csv", "--cluster", "1x4", "-p", "fifo", "--quota", "quotas.toml")
    assert (code, "no job is of virtual cluster typo, which has a quota" in out) == (0, True)


def test_quotas_that_the_trace_does_not_fit_are_refused(penstock: Run, folder: Path) -> None:
    for text, said in (
        ("[gpus]\na = 3\nb = 2\n", "quotas add up to 5 GPUs and the cluster has 4"),
        ("[gpus]\na = 4\n", "virtual cluster b has no quota, and those of the others leave no GPU"),
        ("[gpus]\na = 1\nb = 2\n", "2 of 2 jobs of virtual cluster a can never start: the largest asks for 2"),
    ):
        (folder / "quotas.toml").write_text(text)
        code, out, err = penstock("sim", "vcs.csv", "--cluster", "1x4", "-p", "fifo", "--quota", "quotas.toml")
        assert (code, out) == (2, "")
        assert said in err


def test_elastic_stands_beside_policies_of_either_engine(penstock: Run, folder: Path) -> None:
    for more in ((), ("--engine", "deciders"), ("-p", "allox")):
        found = figures(penstock, "vcs.csv", "-p", "fifo", "-p", "elastic", *more)
        assert found["elastic"]["finished"] == 3
        assert found["elastic"]["avg_jct_s"] != found["fifo"]["avg_jct_s"]


def test_elastic_goes_by_the_curves_of_a_file(penstock: Run, folder: Path) -> None:
    (folder / "curves.toml").write_text('["*"]\n1 = 1.0\n4 = 4.0\n')
    found = figures(penstock, "vcs.csv", "-p", "elastic", "--scaling", "curves.toml", "--set", "most_gpus=4")
    assert found["elastic"]["makespan_s"] == pytest.approx((2 * 100 + 2 * 100 + 50) / 4)


PROFILE = """["*"]
b_min = 8
b_max = 64
per_gpu_cap = 16
batch_step = 8
t_proc_s = { 8 = 1.0, 16 = 1.6 }
t_comm_s = { 2 = 0.4, 4 = 0.4 }
"""


def test_elastic_and_its_baselines_go_by_a_file_of_profiles(penstock: Run, folder: Path) -> None:
    (folder / "profiles.toml").write_text(PROFILE)
    (folder / "jobs.csv").write_text("job_id,submit_s,num_gpus,duration_s,batch_size\na,0,1,64,16\nb,1,1,8,\n")
    names = ("fixed", "elastic-user-batch", "elastic-min-batch", "elastic-max-batch", "elastic")
    more = ("--profiles", "profiles.toml", "--set", "most_gpus=4", "--set", "drop=true", "--window-s", "10")
    found = figures(penstock, "jobs.csv", *(word for name in names for word in ("-p", name)), *more)
    assert [found[name]["dropped"] for name in names] == [0, 0, 0, 1, 0]  # the largest batch takes all four
    assert [found[name]["in_window"] for name in names] == [1, 1, 1, 0, 1]
    assert found["elastic"]["avg_jct_s"] < found["elastic-user-batch"]["avg_jct_s"] < found["fixed"]["avg_jct_s"]


def test_a_table_over_seeds_tells_how_many_jobs_ended_in_the_window(penstock: Run, folder: Path) -> None:
    code, out, err = penstock(
        "sim", "recipe.toml", "--cluster", "1x4", "-p", "fixed,elastic", "--seeds", "2", "--window-s", "3600"
    )
    assert (code, err) == (0, "")
    assert "jobs that finished within 1 h of the first submission: fixed" in " ".join(out.split())
    assert "elastic may give a job other GPUs than it asks for; throughput goes by" in " ".join(out.split())
    assert "DONE" in out
    assert "DROPPED" in out


@pytest.mark.parametrize("placement", ["best-fit", "consolidate", "first-fit"])
def test_placements_of_the_matcher_are_run_by_the_deciders(penstock: Run, folder: Path, placement: str) -> None:
    assert figures(penstock, "vcs.csv", "-p", "fifo", "--placement", placement)["fifo"]["finished"] == 3


def test_a_recipe_is_made_up_anew_for_each_seed(penstock: Run, folder: Path) -> None:
    one, other = (figures(penstock, "recipe.toml", "-p", "fifo", "--seed", seed)["fifo"] for seed in ("5", "6"))
    own = figures(penstock, "recipe.toml", "-p", "fifo")["fifo"]
    assert own["sum_jct_s"] == one["sum_jct_s"] != other["sum_jct_s"]


def test_several_seeds_give_means_and_spreads(penstock: Run, folder: Path) -> None:
    args = ("sim", "recipe.toml", "--cluster", "1x2", "-p", "fifo,srtf", "--seed", "5", "--seed", "6")
    code, out, _ = penstock(*args, "-o", "json")
    body = json.loads(out)
    each = [
        json.loads(penstock(*args[:6], "--seed", seed, "-o", "json")[1])["policies"]["srtf"]["avg_jct_s"]
        for seed in ("5", "6")
    ]
    assert (code, body["seeds"]) == (0, [5, 6])
    assert body["policies"]["srtf"]["avg_jct_s"] == pytest.approx(sum(each) / 2)
    spread = body["spread"]["srtf"]["avg_jct_s"]
    assert (spread["least"], spread["most"]) == (min(each), max(each))
    assert spread["sd"] == pytest.approx(abs(each[0] - each[1]) / 2**0.5)
    assert body["spread"]["fifo"]["ratio"] == {"mean": 1.0, "sd": 0.0, "least": 1.0, "most": 1.0}


@pytest.mark.slow
def test_the_table_of_several_seeds_says_how_far_they_lie_apart(penstock: Run, folder: Path) -> None:
    args = ("sim", "recipe.toml", "--cluster", "1x2", "-p", "fifo,srtf", "--seeds", "2")
    code, out, err = penstock(*args, "--out", "out")
    assert code == 0, err
    lines = out.splitlines()
    assert ["POLICY", "SEEDS", "AVG", "+-", "P95", "+-", "RATIO", "+-"] in [line.split() for line in lines]
    assert any("means over 2 seeds" in line for line in lines)
    assert max(map(len, lines)) <= 80
    assert "Over the seeds" in (folder / "out/report.html").read_text()
    assert "--seed 0 --seed 1" in (folder / "out/report.html").read_text()


def test_a_trace_that_is_not_there_is_bad_input(penstock: Run) -> None:
    code, _, err = penstock("sim", "none.csv", "--cluster", "1x4", "-p", "fifo")
    assert (code, err) == (2, "penstock: there is no file none.csv; check the path\n")


def test_a_trace_without_a_job_is_bad_input(penstock: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text(JOBS.splitlines()[0] + "\n")
    code, _, err = penstock("sim", f"{tmp_path}/empty.csv", "--cluster", "1x4", "-p", "fifo")
    assert code == 2
    assert "there is no job in" in err


def test_a_name_that_was_probably_meant_is_told(sim: Run) -> None:
    assert "did you mean thresholds_gpu_s?" in sim("-p", "las", "--set", "threshold=1")[2]


def test_counting_will_do_unless_something_needs_the_deciders() -> None:
    def engine(cluster: str = "2x4", **more: object) -> str:
        asked = SimulationArguments(Path("x"), cluster, **{"policies": ("fifo",), **more})  # type: ignore[arg-type] # any fields
        return simulation_plan.choose_engine(asked, load(cluster), None, spells=False)

    assert engine() == "counted"
    assert engine(engine="deciders") == "deciders"
    assert engine(policies=("fifo", "allox")) == "deciders"
    assert engine(settings=["window=64"]) == "deciders"
    assert engine("1x4@fast+1x4@slow") == "deciders"
    assert engine(placement="best-fit") == "deciders"
    assert engine(log=Path("log")) == "deciders"
    assert engine(length_error=0.5) == "deciders"


def test_the_first_ctrl_c_leaves_the_results_so_far(
    jobs: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = simulation_plan.SimulationPlan.run

    def interrupted(
        planned: simulation_plan.SimulationPlan, policy: str, seed: int, progress: simulation_plan.Progress
    ) -> Outcome:
        signal.raise_signal(signal.SIGINT)
        return simulated(planned, policy, seed, progress)

    monkeypatch.setattr(simulation_plan.SimulationPlan, "run", interrupted)
    with pytest.raises(simulation_run.typer.Exit) as left:
        simulation_run.simulate(SimulationArguments(Path(jobs), "1x4", ("fifo", "srtf")), ReportOptions())
    out, err = capsys.readouterr()
    assert left.value.exit_code == 130
    assert "fifo" in out
    assert "srtf" not in out
    assert "stopped by Ctrl-C; what is shown are the results so far" in err


def shown_until(terminal: int, words: str) -> str:
    """Read what a process shows on a terminal until these words."""
    shown = ""
    while words not in shown:
        shown += os.read(terminal, 4096).decode()
    return shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "shown"),
    sampled(
        [
            pytest.param((), ("elastic (2 of 2): ", " jobs/s, ", " left"), id="one process"),
            pytest.param(("--jobs", "2"), ("simulations: ", "1 of 2 done, "), id="several"),
        ]
    ),
)
def test_ctrl_c_leaves_what_a_real_process_has(folder: Path, more: tuple[str, ...], shown: tuple[str, ...]) -> None:
    """The second policy would take minutes; a terminal shows how far it is."""
    (folder / "large.toml").write_text(RECIPE.replace("jobs = 40", "jobs = 20000"))
    args = ("sim", "large.toml", "--cluster", "32x8", "-p", "fifo,elastic", *more)
    ours, theirs = os.openpty()
    with Popen([sys.executable, "-m", "penstock", *args], stdout=PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        for words in shown:
            shown_until(ours, words)
        process.send_signal(signal.SIGINT)
        err = shown_until(ours, "so far")
        out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 130, err
    assert "stopped by Ctrl-C; what is shown are the results so far" in err
    assert "Traceback" not in err
    assert out.splitlines()[1].split()[0] == "fifo"
    begun = re.search(r"^elastic +[\d-]", out, re.MULTILINE)  # the other process may not have been that far
    assert begun or more, out
    assert not begun or re.search(r"elastic: [\d,]+ of 20,000 jobs did not finish", " ".join(out.split())), out


def test_the_second_ctrl_c_interrupts() -> None:
    with simulation_run.ComputationProgress() as waiting:
        signal.raise_signal(signal.SIGINT)
        assert waiting.over
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    now_s = [0.0]
    monkeypatch.setattr(simulation_run, "_now_s", lambda: now_s[0])
    return now_s


def test_progress_is_shown_on_a_terminal_only(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal in (False, True):
        monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal)
        with simulation_run.ComputationProgress() as waiting:
            told = waiting.watch("fifo", jobs=1_000)
            for ended in range(0, 1_000, 10):
                clock[0] += 0.01
                told(ended)
        err = capsys.readouterr().err
        assert ("fifo: 200 of 1,000 jobs, 20 %, 952 jobs/s, 0.8s left" in err) is terminal
        assert err.count("fifo") <= 6
