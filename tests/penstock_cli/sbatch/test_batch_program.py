"""The programs that a script finds on its nodes, run as nodes run them."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path
from subprocess import TimeoutExpired

import pytest
from batch_runs import BatchRun, ended_with

pytestmark = pytest.mark.slow
STEPS = """#!/bin/bash
#SBATCH --nodes=3 --gres=gpu:2 --ntasks-per-node=2 --gpus-per-task=1
echo "$SLURM_JOB_NODELIST $SLURM_NTASKS $SLURM_TASKS_PER_NODE $CUDA_VISIBLE_DEVICES $TOLD $1"
scontrol show hostnames
srun -l bash -c 'echo $SLURM_LOCALID $SLURM_NODEID $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $PENSTOCK_NODE' | sort -n
srun -N3 --ntasks-per-node=1 sh -c 'exit $SLURM_PROCID'
echo "code $?"
srun -w n2 -n1 sh -c 'cat; echo "$SLURM_NNODES $SLURM_NTASKS"' < /dev/null
srun --mpi=pmix true
"""


def test_tasks_run_on_all_machines_and_two_nodes_may_be_on_one(tmp_path: Path) -> None:
    done = BatchRun(tmp_path, STEPS, nodes="n1:4 n2:2").run("a word")
    assert done.stdout.splitlines() == [
        "n[1,1-2] 6 2(x3) 0,1 yes a word",
        *("n1", "n1", "n2"),
        "0: 0 0 n1 0 n1",
        "1: 1 0 n1 1 n1",
        "2: 0 1 n1 2 n1",
        "3: 1 1 n1 3 n1",
        "4: 0 2 n2 0 n2",
        "5: 1 2 n2 1 n2",
        "code 2",
        "1 1",
    ]
    assert "have mpirun do it" in done.stderr
    assert done.returncode == 1
    assert (tmp_path / "slurm-123456789.out").read_text().splitlines()[0].endswith("a word")


def test_devices_that_do_not_make_the_nodes_are_told(tmp_path: Path) -> None:
    done = BatchRun(tmp_path, "#!/bin/sh\n#SBATCH -N2 --gres=gpu:2\ntrue\n", nodes="n1:3 n2:1").run()
    assert done.returncode == 1
    assert "n1 has 3 of its devices, and the script asks for 2 on each node" in done.stderr


def test_a_machine_whose_script_is_killed_ends_the_others(tmp_path: Path) -> None:
    run = BatchRun(
        tmp_path, "#!/bin/sh\n#SBATCH -N2 --gres=gpu:1\nsrun sh -c 'echo up; exec sleep 100'\n", nodes="n1:1 n2:1"
    )
    first, second = run.begin()
    assert first.stdout is not None
    assert [first.stdout.readline(), first.stdout.readline()] == ["up\n", "up\n"]
    first.kill()
    assert second.wait(60) == 1
    first.wait()


@pytest.mark.parametrize(("flag", "shell", "step"), [("B:", True, False), ("", False, True)])
def test_the_warning_goes_to_the_shell_or_to_the_steps(tmp_path: Path, flag: str, shell: bool, step: bool) -> None:
    body = f"""#!/bin/bash
#SBATCH --gpus=1 --time=10 --signal={flag}USR1@60
trap 'echo shell; kill $!' USR1
srun bash -c 'trap "echo step; exit 0" USR1; trap "exit 0" TERM; echo up; while :; do sleep 0.05; done' &
wait $!
"""
    (process,) = BatchRun(tmp_path, body).begin()
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=60)
    assert (("shell" in output), ("step" in output)) == (shell, step)


def test_output_goes_to_files_as_the_script_says_and_to_penstock_too(tmp_path: Path) -> None:
    body = "#!/bin/bash\n#SBATCH -J fit --gpus=1 -o %x-%A_%a-%5j.out -e %u.err\necho out; echo err >&2; exit 7\n"
    more = {"PENSTOCK_ARRAY_ID": "1000", "PENSTOCK_ARRAY_INDEX": "3"}
    more |= {f"PENSTOCK_ARRAY_{name}": "3" for name in ("COUNT", "MIN", "MAX", "STEP")}
    done = BatchRun(tmp_path, body, **more).run(job_id="1000-3")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)
    assert (tmp_path / "fit-1000_3-01003.out").read_text() == "out\n"
    assert (tmp_path / "ada.err").read_text() == "err\n"


def test_a_file_of_output_that_cannot_be_opened_fails_the_job_with_the_folder(tmp_path: Path) -> None:
    done = BatchRun(tmp_path, "#!/bin/sh\n#SBATCH -G1 -o nowhere/a.out\necho hi\n").run()
    assert done.returncode == 1
    assert f"there is no folder {tmp_path}/nowhere; make it first" in done.stderr


def test_a_disk_that_is_full_keeps_the_job_running(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    done = BatchRun(tmp_path, "#!/bin/sh\n#SBATCH -G1 -o full\necho one; echo two\n").run()
    assert (done.stdout, done.returncode) == ("one\ntwo\n", 0)
    assert done.stderr.count("takes no more (the disk is full)") == 1


@pytest.mark.parametrize(
    ("options", "epoch", "why"),
    [("--no-requeue", "2", "is not begun again"), ("--deadline=2020-01-01 -t 5", "1", "--deadline is over")],
)
def test_a_script_is_not_begun_where_it_says_so(tmp_path: Path, options: str, epoch: str, why: str) -> None:
    run = BatchRun(tmp_path, "#!/bin/sh\n#SBATCH -G1\necho begun\n", options=options, PENSTOCK_EPOCH=epoch)
    done = run.run()
    assert (done.stdout, done.returncode) == ("", 1)
    assert why in done.stderr


def test_a_run_that_never_began_counts_neither_for_no_requeue_nor_for_the_deadline(tmp_path: Path) -> None:
    """The third placement of a job whose first one was refused by its node, and whose second one ran for 50 minutes."""
    deadline = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 30 * 60))  # noqa: TID251
    left = "$((SLURM_JOB_END_TIME - SLURM_JOB_START_TIME))"
    body = f'#!/bin/sh\n#SBATCH -G1 -t 60\necho "begun ${{SLURM_RESTART_COUNT:-0}} {left}"\n'
    again = {"PENSTOCK_EPOCH": "3", "PENSTOCK_STARTS": "1", "PENSTOCK_EXECUTED_S": "3000.000"}
    (tmp_path / "late").mkdir()
    late = BatchRun(tmp_path / "late", body, options=f"--deadline={deadline}", **again)
    assert late.run().stdout == "begun 1 600\n"
    never = {"PENSTOCK_EPOCH": "3", "PENSTOCK_STARTS": "0", "PENSTOCK_EXECUTED_S": "0.000"}
    assert BatchRun(tmp_path, body, options="--no-requeue", **never).run().stdout == "begun 0 3600\n"


def test_a_step_that_waits_for_room_ends_at_a_term(tmp_path: Path) -> None:
    body = """#!/bin/bash
#SBATCH --gpus=1 -n1
srun --gpus=1 sh -c 'echo up; exec sleep 100' &
until grep -q up out 2> /dev/null; do sleep 0.05; done
srun --gpus=1 true &
until [ "$(ls $PENSTOCK_BATCH_DIR/steps | wc -l)" = 2 ]; do sleep 0.05; done
kill $!; wait $!; echo "waited $?"
srun --exact --overlap -n1 true; echo "beside $?"
kill %1; wait
"""
    (process,) = BatchRun(tmp_path, body.replace("echo up", "echo up > out")).begin()
    output, errors = process.communicate(timeout=60)
    assert output.splitlines() == ["waited 143", "beside 0"], errors


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("-r x", "--relative 'x' is no number of a node"),
        ("-w n[", "--nodelist: 'n[' is no list of hosts"),
        ("-x n[a]", "--exclude: [a] holds no numbers"),
        ("--time=soon", "--time 'soon': expected such as 90"),
        ("-N 2-1", "--nodes '2-1': expected a number, or the fewest and the most"),
        ("-N 3-4", "the step asks for 3 nodes, and the job has 2"),
    ],
)
def test_what_was_typed_wrongly_of_a_step_is_told_before_it_begins(tmp_path: Path, options: str, said: str) -> None:
    done = BatchRun(tmp_path, f"#!/bin/sh\n#SBATCH -N2 --gres=gpu:1\nsrun {options} true\n", nodes="n1:2").run()
    assert (done.returncode, done.stderr.strip()) == (1, f"srun: error: {done.stderr.strip()[13:]}")
    assert said in done.stderr


def test_a_step_may_have_no_time_limit_and_a_range_of_nodes(tmp_path: Path) -> None:
    body = (
        "#!/bin/sh\n#SBATCH -N2 --gres=gpu:1\nsrun --time=UNLIMITED -N 1-2 echo on\nsrun -t INFINITE -N 2-2 echo all\n"
    )
    done = BatchRun(tmp_path, body, nodes="n1:2").run()
    assert sorted(done.stdout.split()) == ["all", "all", "on", "on"], done.stderr


def test_the_environment_is_that_of_a_login_shell_where_none_is_exported(tmp_path: Path) -> None:
    run = BatchRun(
        tmp_path, '#!/bin/sh\n#SBATCH -G1\necho "${VIRTUAL_ENV:-none} $TOLD $SLURM_JOB_NAME"\n', VIRTUAL_ENV="/x"
    )
    plan = json.loads((run.code / "plan.json").read_text())
    (run.code / "plan.json").write_text(json.dumps({**plan, "export": "NONE"}))
    assert run.run().stdout == "none yes job.sbatch\n"


def test_steps_that_want_devices_of_their_own_wait_for_each_other(tmp_path: Path) -> None:
    body = """#!/bin/bash
#SBATCH -N1 --gres=gpu:2 -n 4
for step in 1 2 3 4; do
  srun --exact -n1 --gres=gpu:1 sh -c 'd=lock-$CUDA_VISIBLE_DEVICES; mkdir $d && sleep 0.1 && rmdir $d' &
done
wait
echo "steps $(ls -d lock-* 2>/dev/null | wc -l)"
"""
    done = BatchRun(tmp_path, body, nodes="n1:2").run()
    assert (done.stdout, done.stderr) == ("steps 0\n", "")


def test_functions_of_the_shell_reach_the_tasks(tmp_path: Path) -> None:
    body = "#!/bin/bash\n#SBATCH -G1\nmodule() { echo loaded $1; }\nexport -f module\nsrun bash -c 'module cuda'\n"
    assert BatchRun(tmp_path, body).run().stdout == "loaded cuda\n"


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = BatchRun(tmp_path, "#!/opt/none/bash -l\n#SBATCH -G1\ntrue\n").run()
    assert "names /opt/none/bash, which this node does not have" in done.stderr


def test_a_term_reaches_the_script_and_its_code_is_the_jobs(tmp_path: Path) -> None:
    (process,) = BatchRun(tmp_path, "#!/bin/bash\n#SBATCH -G1\ntrap 'exit 9' TERM\necho up\nsleep 100 & wait\n").begin()
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 9


def test_a_machine_that_comes_when_the_script_is_over_ends_well(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    run = BatchRun(tmp_path, "#!/bin/sh\n#SBATCH -N2 --gres=gpu:1\nexec 9> alive\n", nodes="n1:1 n2:1")
    first = run.begin_machine(0)
    with ended_with(first):
        assert (tmp_path / "alive").read_text() == ""  # to its end, which is the script's
        second = run.begin_machine(1)
        with ended_with(second):
            assert (second.wait(60), first.wait(60)) == (0, 0)


def test_a_run_that_is_ended_waits_for_no_machine(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    run = BatchRun(tmp_path, "#!/bin/sh\n#SBATCH -N2 --gres=gpu:1\nexec 9> alive\n", nodes="n1:1 n2:1")
    first = run.begin_machine(0)
    with ended_with(first):
        (tmp_path / "alive").read_text()
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0


SAVER = """trap 'echo saving; read -r < go; echo saved; exit 0' TERM
echo up
while :; do sleep 0.05; done
"""
"""A program that saves its work at a TERM, and is not done before it may."""


def test_tasks_on_further_machines_may_save_their_work_at_a_term(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    (tmp_path / "saver.sh").write_text(SAVER)
    body = "#!/bin/bash\n#SBATCH -N2 --gres=gpu:1\nsrun -w n2 -n1 bash saver.sh\n"
    first, second = BatchRun(tmp_path, body, nodes="n1:1 n2:1").begin()
    with ended_with(first, second):
        assert first.stdout is not None
        assert first.stdout.readline() == "up\n"
        second.send_signal(signal.SIGTERM)
        assert first.stdout.readline() == "saving\n"
        (tmp_path / "go").write_text("on\n")
        assert first.communicate(timeout=60)[0] == "saved\n"
        assert (first.returncode, second.wait(60)) == (0, 0)


@pytest.mark.parametrize("words", ["", "srun ", "set -m; srun "], ids=["child", "step", "step of its own group"])
def test_the_job_ends_once_what_the_script_has_started_has_saved_its_work(tmp_path: Path, words: str) -> None:
    for name in ("go", "said"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "saver.sh").write_text(SAVER)
    body = f"#!/bin/bash\n#SBATCH --gres=gpu:1\n{words}bash saver.sh > said 2> /dev/null\necho not reached\n"
    (process,) = BatchRun(tmp_path, body).begin()
    with ended_with(process), (tmp_path / "said").open() as said:
        assert said.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert said.readline() == "saving\n"
        with pytest.raises(TimeoutExpired):
            process.wait(1)
        (tmp_path / "go").write_text("on\n")
        assert said.read() == "saved\n"
        assert process.wait(60) == 128 + signal.SIGTERM


def test_each_node_on_a_further_machine_has_its_own_devices(tmp_path: Path) -> None:
    body = "#!/bin/bash\n#SBATCH -N4 --gres=gpu:1\nsrun -l sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES' | sort\n"
    done = BatchRun(tmp_path, body, nodes="a:2 b:2").run()
    assert done.stdout.splitlines() == ["0: a 0", "1: a 1", "2: b 0", "3: b 1"]


def test_a_shell_on_a_further_machine_can_trap_the_warning(tmp_path: Path) -> None:
    (tmp_path / "task.sh").write_text("trap 'echo heard; exit 0' USR1; echo up; while :; do sleep 0.05; done\n")
    body = "#!/bin/bash\n#SBATCH -N2 --gres=gpu:1 --signal=USR1@60 -t 5\nsrun -w n2 -n1 bash task.sh\n"
    first, second = BatchRun(tmp_path, body, nodes="n1:1 n2:1").begin()
    with ended_with(first, second):
        assert first.stdout is not None
        assert first.stdout.readline() == "up\n"
        second.send_signal(signal.SIGUSR1)  # as nodes do; those of tasks come over srun
        first.send_signal(signal.SIGUSR1)
        assert first.stdout.readline() == "heard\n"
        assert (first.wait(60), second.wait(60)) == (0, 0)


def test_a_job_that_is_not_to_be_begun_again_cannot_requeue_itself(tmp_path: Path) -> None:
    body = '#!/bin/sh\n#SBATCH -G1 --no-requeue\nscontrol requeue "$SLURM_JOB_ID"\necho "code $?"\n'
    done = BatchRun(tmp_path, body).run()
    assert (done.stdout, done.returncode) == ("code 1\n", 0)
    assert "the job was submitted with --no-requeue" in done.stderr


def test_tasks_go_where_their_devices_are(tmp_path: Path) -> None:
    body = """#!/bin/bash
#SBATCH --ntasks=4 --gpus-per-task=1
echo "$SLURM_TASKS_PER_NODE"
srun -l sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES' | sort
"""
    done = BatchRun(tmp_path, body, nodes="a:3 b:1").run()
    assert done.stdout.splitlines() == ["3,1", "0: a 0", "1: a 1", "2: a 2", "3: b 0"]


def test_tasks_read_the_file_of_input_on_all_machines_and_idle_options_are_told(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"in.{number}").write_text(f"words of {number}\n")
    body = """#!/bin/bash
#SBATCH -N2 --gres=gpu:1
srun -l -i in.%t --wait=5 --no-kill --exclusive --gres=gpu:1 cat | sort
srun -n1 -i nowhere cat
echo "code $?"
srun -n1 -i all cat < in.1
srun -i all cat
"""
    done = BatchRun(tmp_path, body, nodes="n1:1 n2:1").run()
    assert done.stdout.splitlines() == ["0: words of 0", "1: words of 1", "code 127", "words of 1"]
    for told in (
        "--wait has no effect",
        "--no-kill has no effect",
        "--exclusive has no effect",
        "nowhere: No such file",
    ):
        assert told in done.stderr
    assert "--input=all: of what srun reads, only a step of one task has it" in done.stderr


def test_tasks_know_the_address_of_the_scripts_machine(tmp_path: Path) -> None:
    run = BatchRun(tmp_path, "#!/bin/sh\n#SBATCH -G1\nsrun printenv SLURM_LAUNCH_NODE_IPADDR\n", MASTER_ADDR="10.1.2.3")
    assert run.run().stdout == "10.1.2.3\n"


def test_a_run_that_cannot_begin_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    with socket.create_server(("", 0)) as taken:
        more = {"MASTER_PORT": str(taken.getsockname()[1]), "TMPDIR": str(tmp_path / "tmp")}
        run = BatchRun(tmp_path, "#!/bin/sh\n#SBATCH -N2 --gres=gpu:1\n", nodes="n1:1 n2:1", **more)
        errors = run.begin_machine(0).communicate(timeout=60)[1]
    assert "where the job's nodes meet, is taken" in errors
    assert not list((tmp_path / "tmp").iterdir())
