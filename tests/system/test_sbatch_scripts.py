"""Scripts of sbatch on a real cluster: from submission to output, arrays, and scripts that submit and requeue."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import Cluster, facts, running, until

COLLECTION = Path(__file__).parents[1] / "data" / "sbatch"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_EXECUTOR_SECRETS_DIR", str(tmp_path_factory.mktemp("secrets")))
        with running(tmp_path_factory.mktemp("cluster"), "--emulate", "fast:4") as one:
            patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # where jobs find penstock
            yield one


def script(folder: Path, *lines: str, name: str = "job.sbatch") -> str:
    """Write a script, and return its name."""
    (folder / name).write_text("\n".join(["#!/bin/bash", *lines, ""]))
    return name


async def ends(cluster: Cluster, *job_ids: str) -> list[str]:
    """Return the states in which jobs have ended."""
    async with cluster.client() as client:
        return [(await client.wait(job_id)).state for job_id in job_ids]


def jobs_named(cluster: Cluster, name: str) -> list[str]:
    """Return the ids of all jobs of a name."""
    found = json.loads(cluster.run("ps", "-a", "--name", name, "-o", "json").stdout)["jobs"]
    return [job["id"] for job in found]


async def test_a_script_runs_as_it_was_submitted_and_its_output_is_in_its_file_too(
    cluster: Cluster, tmp_path: Path
) -> None:
    lines = (
        "#SBATCH -J fit --gres=gpu:2 -t 1:00:00 -o %x-%j.out",
        'echo "$1 $SLURM_GPUS_ON_NODE $SLURM_JOB_ID"',
        "exit 3",
    )
    name = script(tmp_path, *lines)
    done = cluster.tried("submit", name, "--hold", "--", "--lr 1", cwd=tmp_path)
    job_id = done.stdout.strip()
    assert re.fullmatch(r"\d{9}", job_id), done.stderr
    script(tmp_path, "#SBATCH --gpus=1", "echo changed")
    cluster.run("release", job_id)
    assert await ends(cluster, job_id) == ["F"]
    said = f"--lr 1 2 {job_id}\n"
    assert said in cluster.run("logs", job_id).stdout  # behind the rank, as of all jobs with several devices
    assert (tmp_path / f"fit-{job_id}.out").read_text() == said
    spec = json.loads(cluster.run("show", job_id, "-o", "json").stdout)["spec"]
    assert (spec["gpus"], spec["gpus_per_node"], spec["time_limit_s"], spec["cwd"]) == (2, 2, 3600.0, str(tmp_path))
    assert not [name for name in spec["env"] if name.startswith("SLURM")]


async def test_the_exit_code_of_a_script_is_that_of_wait_and_sbatch_speaks_as_slurm_does(
    cluster: Cluster, tmp_path: Path
) -> None:
    done = cluster.tried("sbatch", "--wait", str(COLLECTION / "30_exit_code.sbatch"), "-x", cwd=tmp_path)
    assert done.returncode == 7
    assert re.fullmatch(r"Submitted batch job \d{9}\n", done.stdout)
    quiet = cluster.tried(
        "sbatch", "--parsable", "--gpus=1", "--begin=now+1day", "--wrap", "echo wrapped", cwd=tmp_path
    )
    assert re.fullmatch(r"\d{9}\n", quiet.stdout)
    assert cluster.tried("sbatch", "--test-only", "--gpus=1", "--wrap", "true", cwd=tmp_path).returncode == 0
    cluster.run("cancel", quiet.stdout.strip())


async def test_an_array_has_one_number_and_a_file_for_each_job(cluster: Cluster, tmp_path: Path) -> None:
    array = cluster.tried(
        "sbatch", "--parsable", str(COLLECTION / "05_array_of_files.sbatch"), cwd=tmp_path
    ).stdout.strip()
    behind = script(tmp_path, f"#SBATCH -G1 -d afterok:{array} -o behind.out", "ls files_*")
    last = cluster.tried("submit", behind, cwd=tmp_path).stdout.strip()
    assert await ends(cluster, last) == ["CD"]
    names = [f"files_{array}_{index}.out" for index in (1, 2, 3)]
    assert (tmp_path / "behind.out").read_text().split() == names
    assert (tmp_path / names[1]).read_text() == "b.txt: 2 of 1-3, 3 in all\n"


async def test_scripts_submit_others_and_requeue_themselves(cluster: Cluster, tmp_path: Path) -> None:
    name = script(
        tmp_path,
        "#SBATCH -J again --gpus=1 -t 10 -o %x-%j.out",
        'echo "run ${SLURM_RESTART_COUNT:-0}"',
        '[ "$SLURM_RESTART_COUNT" ] && exit 0',
        'scontrol requeue "$SLURM_JOB_ID" && sleep 100',
    )
    first = cluster.tried("submit", name, cwd=tmp_path).stdout.strip()
    (tmp_path / "08_dependency_chain.sh").write_bytes((COLLECTION / "08_dependency_chain.sh").read_bytes())
    chained = cluster.tried("submit", "08_dependency_chain.sh", cwd=tmp_path).stdout.strip()
    assert await ends(cluster, first) == ["CD"], cluster.run("logs", first).stderr
    (second,) = [job for job in jobs_named(cluster, "again") if job != first]
    assert await ends(cluster, second) == ["CD"]
    assert (tmp_path / f"again-{second}.out").read_text() == "run 1\n"
    assert await ends(cluster, chained) == ["CD"]
    for _ in range(2):  # each has submitted the next one before it ended
        assert set(await ends(cluster, *jobs_named(cluster, "chain"))) == {"CD"}
    assert sorted(cluster.run("logs", job).stdout.splitlines()[0] for job in jobs_named(cluster, "chain")) == [
        "step 1",
        "step 2",
        "step 3",
    ]


async def test_run_shows_a_scripts_output_and_exits_as_it_does(cluster: Cluster, tmp_path: Path) -> None:
    name = script(tmp_path, "#SBATCH --gpus=1 -J shown", 'echo "to be seen $1"', "exit 5")
    done = cluster.tried("run", name, "--", "a word", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (5, "to be seen a word\n")
    assert cluster.tried("run", script(tmp_path, "#SBATCH --gpus=1 -a 0-1", "true"), cwd=tmp_path).returncode == 2


def test_a_script_comes_on_standard_input_and_a_job_in_toml_too(cluster: Cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock", "submit", "-"]
    env = {**os.environ, "PENSTOCK_URL": cluster.url}
    texts = ("#!/bin/sh\n#SBATCH --gpus=1\necho piped\n", 'name = "piped"\nprofile = "off"\ncommand = ["true"]\n')
    for text in texts:
        done = subprocess.run(command, input=text, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert asyncio.run(ends(cluster, done.stdout.strip())) == ["CD"]
    assert [path.read_text() for path in tmp_path.glob("slurm-*.out")] == ["piped\n"]


async def test_singletons_run_one_after_the_other(cluster: Cluster, tmp_path: Path) -> None:
    name = script(tmp_path, "#SBATCH --gpus=1 -J alone -d singleton", "mkdir one || exit 1", "sleep 0.2", "rmdir one")
    jobs = [cluster.tried("submit", name, cwd=tmp_path).stdout.strip() for _ in range(3)]
    assert await ends(cluster, *jobs) == ["CD", "CD", "CD"]


async def test_a_script_without_a_home_submits_the_next_one_with_its_users_login(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login is a secret of the node, which each job of the chain has for as long as it runs."""
    login = cluster.data / "client.json"
    secret = Path(os.environ["PENSTOCK_EXECUTOR_SECRETS_DIR"], "users", json.loads(login.read_text())["user"], "login")
    secret.parent.mkdir(parents=True)
    secret.touch(mode=0o600)
    secret.write_bytes(login.read_bytes())
    name = script(
        tmp_path,
        "#SBATCH --gpus=1 -t 10 -J link --export=ALL,HOME=/nonexistent",
        'squeue -h --me -n link -o "%i"',
        'if [ "${1:-0}" -lt 2 ]; then sbatch job.sbatch $((${1:-0} + 1)); fi',
    )
    monkeypatch.setenv("HOME", str(tmp_path))  # where no login is
    monkeypatch.setenv("PENSTOCK_CREDENTIALS", str(login))
    refused = cluster.tried("submit", name, "--wait", "--secret", "PENSTOCK_CREDENTIALS=login", cwd=tmp_path)
    assert refused.returncode == 2
    assert "one of Penstock's own variables" in " ".join(refused.stderr.split())
    monkeypatch.setenv("SBATCH_PENSTOCK_LOGIN", "login")
    first = cluster.tried("sbatch", "--parsable", name, cwd=tmp_path).stdout.strip()
    async with cluster.client() as client:
        assert (await client.wait(first)).state == "CD"
        for _ in range(2):
            jobs = (await client.jobs(name="link")).jobs
            assert {(await client.wait(job.id)).state for job in jobs} == {"CD"}
    assert len(jobs) == 3
    assert f"{first}\n" in (tmp_path / f"slurm-{first}.out").read_text()


async def test_a_script_for_two_devices_of_a_node_has_two_runs_make_way(cluster: Cluster, tmp_path: Path) -> None:
    cluster.run("class", "set", "urgent", "--weight", "10", "--preempts")
    long = [cluster.run("submit", "--profile", "off", "--", "sleep", "600").stdout.strip() for _ in range(4)]
    async with cluster.client() as client:
        for job in long:
            await until(client, job, "run.started.v1")
        name = script(tmp_path, "#SBATCH --gres=gpu:2 --qos=urgent", "exit 0")
        assert await ends(cluster, cluster.tried("submit", name, cwd=tmp_path).stdout.strip()) == ["CD"]
        stopped = [job for job in long if await facts(client, job, "run.ended.v1")]
        assert len(stopped) == 2
        for job in long:
            await client.cancel(job)
            await client.wait(job)
    cluster.run("class", "rm", "urgent")


def test_what_cannot_be_honoured_is_told_and_nothing_is_submitted(cluster: Cluster, tmp_path: Path) -> None:
    before = len(json.loads(cluster.run("ps", "-a", "-o", "json").stdout)["jobs"])
    done = cluster.tried("submit", str(COLLECTION / "28_licenses.sbatch"), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("is not honoured") == 3
    assert "--without hint,licenses,reservation" in done.stderr
    assert len(json.loads(cluster.run("ps", "-a", "-o", "json").stdout)["jobs"]) == before
    left_out = cluster.tried(
        "submit",
        str(COLLECTION / "28_licenses.sbatch"),
        "--without",
        "hint,licenses,reservation",
        "--wait",
        cwd=tmp_path,
    )
    assert left_out.returncode == 0, left_out.stderr


def test_of_several_scripts_none_becomes_an_argument_of_the_first(cluster: Cluster, tmp_path: Path) -> None:
    names = [script(tmp_path, "#SBATCH --gpus=1", "exit 0", name=name) for name in ("one.sbatch", "two.sbatch")]
    done = cluster.tried("submit", *names, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "two.sbatch is a script of sbatch too, and one is submitted at a time" in done.stderr
    assert cluster.tried("submit", "--dry-run", names[0], "--", names[1], cwd=tmp_path).returncode == 0
