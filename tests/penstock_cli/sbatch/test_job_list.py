"""What scripts ask of squeue, sacct, scancel and scontrol within jobs, of a command line that is not there for real."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from batch_runs import BatchRun

pytestmark = pytest.mark.slow


def row(job_id: str, state: str, **fields: Any) -> dict[str, Any]:
    """Return a job as `penstock ps -o json` has it."""
    found = {
        "id": job_id,
        "name": "fit",
        "state": state,
        "user": "ada",
        "team": "vision",
        "pool": "default",
        "gpus": 2,
        "submitted_s": 1000.0 + len(job_id),
        "started_s": 0.0,
        "finished_s": 0.0,
        "run_s": 0.0,
        "devices": [],
        "reason": "",
        "exit_code": None,
        "held": False,
        "cause": "",
        "priority_class": "",
    }
    return {**found, **fields}


JOBS = [
    row("123456789", "R", run_s=3661.0, devices=["n1/fast0", "n1/fast1", "n2/fast0"], started_s=1.0),
    row("200000000-7", "PD", cause="dependency", submitted_s=2000.0),
    row("300000000", "F", name="late", reason="its time limit of 1m is over", exit_code=143, finished_s=9.0),
    row("300000001", "CD", name="done", exit_code=0, run_s=90.0, finished_s=9.0, submitted_s=3000.0),
]
PENSTOCK = """#!/bin/sh
echo "$@" >> {folder}/asked
[ "$1" = ps ] && cat {folder}/jobs.json
exit {code}
"""


def job(folder: Path, *lines: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a script beside a `penstock` that knows these jobs."""
    programs = folder / "own"
    programs.mkdir()
    (folder / "jobs.json").write_text(json.dumps({"jobs": JOBS}))
    (programs / "penstock").write_text(PENSTOCK.format(folder=folder, code=code))
    (programs / "penstock").chmod(0o755)
    body = "\n".join(["#!/bin/bash", "#SBATCH --gpus=1", *lines, ""])
    return BatchRun(folder, body, PATH=f"{programs}:{os.environ['PATH']}", HOME=str(folder), **environ).run()


def asked(folder: Path) -> list[str]:
    """Return the words with which `penstock` was asked."""
    return (folder / "asked").read_text().splitlines()


def test_squeue_lists_what_is_not_over_in_the_form_that_scripts_read(tmp_path: Path) -> None:
    done = job(
        tmp_path,
        "squeue -u ada",
        'squeue -h -u $USER -t PD,R -o "%i|%j|%t|%R|%M|%D"',
        "squeue -h -j 300000000 | wc -l",
        "squeue -hO jobid:12,state",
        "squeue -h -j 300000000 -t all -o %T",
    )
    assert done.stdout.splitlines() == [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        "         123456789   default      fit      ada  R    1:01:01      2 n[1-2]",
        "       200000000_7   default      fit      ada PD       0:00      1 (Dependency)",
        "123456789|fit|R|n[1-2]|1:01:01|2",
        "200000000_7|fit|PD|(Dependency)|0:00|1",
        "0",
        "123456789   RUNNING             ",
        "200000000_7 PENDING             ",
        "TIMEOUT",
    ]
    assert asked(tmp_path)[0] == "ps -o json --limit 100000 -s PD,R,PR,CG -u me"


def test_states_of_slurms_are_all_known_and_others_are_refused_by_name(tmp_path: Path) -> None:
    done = job(
        tmp_path,
        "squeue -h -t suspended,OOM | wc -l",
        "squeue -h -t R,NODE_FAIL -o %T",
        "squeue -t RUNING",
        "sacct -n -s F -o State -S 1970-01-01",
    )
    assert done.stdout.split() == ["0", "RUNNING"]
    assert "--state RUNING: it is no state of Slurm's; expected some of PENDING, RUNNING, " in done.stderr
    assert [line.partition("-s ")[2] for line in asked(tmp_path)] == ["R", "F -u me"]


def test_several_jobs_are_asked_for_at_once(tmp_path: Path) -> None:
    done = job(tmp_path, "squeue -h -j 123456789,200000000,300000000 -t all -o %i")
    assert done.stdout.split() == ["123456789", "300000000", "200000000_7"]
    ids = "--id 123456789 --id 200000000 --id 300000000"
    assert [line.partition("--limit 100000 ")[2] for line in asked(tmp_path)] == [f"-s PD,R,PR,CG,CD,F,CA {ids}"]


def test_text_around_the_columns_is_printed_and_a_column_that_is_none_is_refused(tmp_path: Path) -> None:
    done = job(tmp_path, "squeue -ht R -o '<%i> %T!'", "squeue -o %-10i", "squeue -o '%i %'")
    assert done.stdout == "<123456789> RUNNING!\n"
    assert "--format: %-10i is no column; expected such as %i" in done.stderr
    assert "--format: % is no column" in done.stderr


def test_sacct_lists_the_users_own_jobs_unless_others_are_asked_for(tmp_path: Path) -> None:
    day = "-S 2026-01-02"
    job(tmp_path, f"sacct {day}", f"sacct -a {day}", f"sacct -u bob -s CD,TO {day}", "sacct -j 300000001", TZ="UTC")
    words = [line.partition("--limit 100000 ")[2] for line in asked(tmp_path)]
    since = "--since 1767312000.0"
    assert words == [f"-a {since} -u me", f"-a {since}", f"-s CD,F {since} -u bob", "-a --id 300000001"]


def test_sacct_tells_how_jobs_ended(tmp_path: Path) -> None:
    done = job(
        tmp_path,
        "sacct -n -X -j 300000000,300000001 -o JobID%10,State,ExitCode",
        "sacct -P -j 300000001 --format=JobID,JobName,State,Elapsed,NNodes",
        "sacct -n -P -j 200000000_7 -o JobIDRaw,State",
        "sacct -n -j 300000001 -o MaxRSS",
    )
    assert done.stdout.splitlines() == [
        " 300000000      TIMEOUT        143:0 ",
        " 300000001    COMPLETED          0:0 ",
        "JobID|JobName|State|Elapsed|NNodes",
        "300000001|done|COMPLETED|00:01:30|1",
        "200000007|PENDING",
    ]
    assert "MaxRSS: there is no such column" in done.stderr


def test_scontrol_shows_other_jobs_as_slurm_does(tmp_path: Path) -> None:
    done = job(tmp_path, "scontrol show job 300000001 | grep -o JobState=.*Code=[0-9:]*", "scontrol show job 1")
    assert done.stdout == "JobState=COMPLETED Reason=None ExitCode=0:0\n"
    assert "there is no job 1 that this one's user may see" in done.stderr


def test_scancel_takes_ids_and_filters(tmp_path: Path) -> None:
    done = job(
        tmp_path,
        "scancel 300000000,200000000_7",
        "scancel -u $USER -t PENDING --name=fit",
        "scancel; echo $?",
        "scancel --ctld 1",
        "scancel --name fit 3",
        "scancel -n a,b",
        "scancel -t PD,R",
    )
    assert asked(tmp_path) == [
        "cancel -y 300000000 200000000-7",
        "cancel -y -n fit -s PD -u me",
        "cancel -y -s PD -s R",
    ]
    assert done.stdout == "1\n"
    for said in (
        "there is no job",
        "--ctld is not among the options",
        "ids and filters do not go together",
        "--name a,b: expected one",
    ):
        assert said in done.stderr


def test_scancel_sends_signals_to_this_jobs_steps_or_to_its_script(tmp_path: Path) -> None:
    done = job(
        tmp_path,
        "trap 'echo shell' USR1",
        "srun bash -c 'trap \"echo step; exit\" USR1; echo > up; while :; do sleep 0.05; done' &",
        "until test -e up; do sleep 0.05; done",
        "scancel -b -s USR1 $SLURM_JOB_ID",
        "scancel --signal=SIGUSR1 $SLURM_JOB_ID",
        "wait",
        "scancel -s USR1 300000000",
        "for name in 999 0 _IGN; do scancel -s $name $SLURM_JOB_ID; done",
    )
    assert sorted(done.stdout.split()) == ["shell", "step"]
    assert "only of the job in which it is typed" in done.stderr
    for name in ("999", "0", "_IGN"):
        assert f"scancel: error: --signal {name}: there is no such signal" in done.stderr


def test_a_task_on_another_node_is_told_that_signals_and_requeues_come_from_the_first(tmp_path: Path) -> None:
    line = "srun -w n2 -N1 -n1 sh -c 'scancel -s USR1 $SLURM_JOB_ID; scontrol requeue $SLURM_JOB_ID'"
    body = f"#!/bin/bash\n#SBATCH -N2 --gres=gpu:1\n{line}\ntrue\n"
    done = BatchRun(tmp_path, body, nodes="n1:1 n2:1").run()
    for what in ("scancel: error: --signal", "scontrol: error: requeue"):
        assert f"{what}: only from the job's script, or from tasks on its first node" in done.stderr


def test_a_singleton_that_requeues_itself_says_that_it_is_one(tmp_path: Path) -> None:
    (tmp_path / "penstock").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\nexit 3\n')
    (tmp_path / "penstock").chmod(0o755)
    body = "#!/bin/bash\n#SBATCH -G1 -d singleton\nscontrol requeue $SLURM_JOB_ID\n"
    path = f"{tmp_path}:{os.environ['PATH']}"
    BatchRun(tmp_path, body, PATH=path).run()
    assert asked(tmp_path) == ["sbatch --requeue-of 123456789 --singleton"]


def test_a_job_without_a_login_of_its_users_is_told_how_to_have_one(tmp_path: Path) -> None:
    lines = ("sbatch next.sh", "squeue")
    done = job(tmp_path, *lines, code=3, PENSTOCK_CREDENTIALS=str(tmp_path / "closed.json"))
    assert done.stderr.count("SBATCH_PENSTOCK_LOGIN=penstock-login") == 2
    assert done.returncode == 1


def test_a_job_that_has_one_is_not(tmp_path: Path) -> None:
    (tmp_path / ".config/penstock/clients").mkdir(parents=True)
    assert "SBATCH_PENSTOCK_LOGIN" not in job(tmp_path, "sbatch next.sh", code=3).stderr


def test_what_a_script_submits_has_its_login_too_however_it_is_submitted(tmp_path: Path) -> None:
    run = BatchRun(tmp_path, "#!/bin/bash\n#SBATCH -G1\necho $SBATCH_PENSTOCK_LOGIN\n")
    (run.code / "plan.json").write_text(json.dumps({**run.plan, "script": "job.sbatch", "login": "own-login"}))
    assert run.run().stdout == "own-login\n"


def test_where_the_path_has_no_penstock_the_nodes_own_is_asked(tmp_path: Path) -> None:
    (tmp_path / "python").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    (tmp_path / "python").chmod(0o755)
    body = "#!/bin/bash\n#SBATCH --gpus=1\nsbatch next.sh\n"
    BatchRun(tmp_path, body, PATH="/usr/bin:/bin", PENSTOCK_PYTHON=str(tmp_path / "python")).run()
    assert asked(tmp_path) == ["-m penstock sbatch next.sh"]
