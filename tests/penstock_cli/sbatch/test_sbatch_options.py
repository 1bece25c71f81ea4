"""Options of sbatch, and scripts with them: what is read, what is refused by name, and which word counts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from penstock_cli.commands.sbatch import take_without
from penstock_cli.sbatch.job import SbatchJob, translate
from penstock_cli.sbatch.options import LETTERS, OPTIONS, SbatchError, read_environment, read_words
from penstock_cli.sbatch.script import is_script, of_text

_NOT_OF_JOBS = {"help", "usage", "version"}


def job_of(*lines: str, options: str = "") -> SbatchJob:
    """Return the job of a script with such lines, and of options that count more."""
    script = of_text("job.sbatch", "\n".join(["#!/bin/bash", *(f"#SBATCH {line}" for line in lines), "true"]).encode())
    return translate([*script.given, *read_words(options.split(), "the command line")[0]])


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="sbatch is not installed: its own help was not read")
def test_every_option_of_the_installed_sbatch_is_known(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n1\nPartitionName=a Nodes=n1\n")
    env = {**os.environ, "SLURM_CONF": str(conf)}
    said = subprocess.run(["sbatch", "--help"], capture_output=True, text=True, env=env, check=True).stdout
    found = re.findall(r"^\s+(?:-(\w), )?\s*--([a-z-]+)", said, flags=re.MULTILINE)
    assert len(found) > 80
    for letter, name in found:
        if name not in _NOT_OF_JOBS:
            assert OPTIONS[name].letter in {letter, "v"}, name


def test_no_letter_stands_for_two_options_and_each_option_says_what_it_becomes() -> None:
    assert len(LETTERS) == sum(bool(one.letter) for one in OPTIONS.values())
    assert all(len(one.says) > 3 for one in OPTIONS.values())


def test_lines_behind_the_first_command_are_comments() -> None:
    script = of_text(
        "a", b"#!/bin/sh\n#SBATCH -J one\n\n# words\n#SBATCH -N 2\ncat <<E\n#SBATCH --nodes=99\nE\n#SBATCH -H\n"
    )
    assert [(one.name, one.value, one.place) for one in script.given] == [
        ("job-name", "one", "a:2"),
        ("nodes", "2", "a:5"),
    ]


def test_the_command_line_counts_more_than_the_environment_and_that_more_than_the_script() -> None:
    script = of_text("a", b"#!/bin/sh\n#SBATCH -p one\n#SBATCH -J mine\n#SBATCH -t 5\n#SBATCH --gres=gpu:1\n")
    typed, _ = read_words(["--time=7"], "typed")
    more = read_environment({"SBATCH_PARTITION": "two", "SBATCH_TIMELIMIT": "6", "SBATCH_UNKNOWN": "x"})
    job = translate([*script.given, *more, *typed])
    assert (job.fields["pool"], job.fields["name"], job.fields["time_limit_s"]) == ("two", "mine", 420.0)


def test_all_that_keeps_a_script_is_told_at_once_with_its_lines_and_what_to_write() -> None:
    with pytest.raises(SbatchError) as told:
        job_of("--exclusive", "--gres=gpu:1", "--licenses=matlab", "--mem=lots", "--hint=nomultithread")
    lines = str(told.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [
        "job.sbatch:2",
        "job.sbatch:4",
        "job.sbatch:6",
        "job.sbatch:5",
        "to submit it as if such options were not there",
    ]
    assert lines[-1].endswith("--without exclusive,hint,licenses")


def test_what_is_left_out_is_no_longer_refused() -> None:
    script = of_text("a", b"#!/bin/sh\n#SBATCH --exclusive\n#SBATCH --gres=gpu:2\n")
    assert translate(script.given, ["exclusive"]).fields["gpus"] == 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"echo hi\n", "does not begin with #!"),
        (b"", "is empty"),
        (b"#!/bin/sh\r\n#SBATCH -N 1\r\n", "CRLF"),
        (b"#!/bin/sh\n\0", "NUL"),
        (b"#!/bin/sh\n#SBATCH --nods=2\n", "a:2: --nods is no option of sbatch; did you mean --no"),
        (b"#!/bin/sh\n#SBATCH -N\n", "-N (--nodes) lacks its value"),
        (b"#!/bin/sh\n#SBATCH -J 'open\n", "a quotation mark is open"),
        (b"#!/bin/sh\n#SBATCH hetjob\n", "submit a job for each part"),
        (b"#!/bin/sh\n#SBATCH --hold=yes\n", "takes no value"),
        (b"#!/bin/sh\n#SBATCH nodes=2\n", "is no option"),
    ],
)
def test_what_is_no_script_is_refused_by_a_sentence(body: bytes, why: str) -> None:
    with pytest.raises(SbatchError, match=re.escape(why)):
        of_text("a", body)


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["--gres=gpu:2"], {"gpus": 2, "gpus_per_node": 2}),
        (["--gres=gpu"], {"gpus": 1}),
        (["-N2", "--gres=gpu:A100:4"], {"gpus": 8, "gpus_per_node": 4, "kinds": ["a100"]}),
        (["-N 2", "--gpus-per-node=h100:3"], {"gpus": 6, "gpus_per_node": 3, "kinds": ["h100"]}),
        (["-G 4"], {"gpus": 4}),
        (["-G 4", "-N 2"], {"gpus": 4, "gpus_per_node": 2}),
        (["-n 4", "--gpus-per-task=1"], {"gpus": 4}),
        (["-n 4", "--ntasks-per-node=2", "--gpus-per-task=1"], {"gpus": 4, "gpus_per_node": 2}),
        (["-n 2"], {"gpus": 1, "kinds": ["cpu"], "cpus": 2.0}),
        (["--gres=gpu:2", "-c 8", "--ntasks-per-node=2"], {"cpus": 8.0}),
        (["--gres=gpu:2", "--mem=8G"], {"host_memory_bytes": 4 << 30}),
        (["--gres=gpu:2", "--mem=0"], {"host_memory_bytes": None}),
        (["-G1", "--mem-per-gpu=2000"], {"host_memory_bytes": 2000 << 20}),
        (["-G1", "-c4", "--mem-per-cpu=1G"], {"host_memory_bytes": 4 << 30, "cpus": 4.0}),
        (["-G1", "-t 1-2:30"], {"time_limit_s": 95400.0}),
        (["-G1", "-t 90:30"], {"time_limit_s": 5430.0}),
        (["-G1", "-d afterok:1:2,afterany:3_4"], {"after": ["afterok:1", "afterok:2", "afterany:3-4"]}),
        (["-G1", "-q high", "--nice=20", "-H"], {"priority_class": "high", "priority": -20, "hold": True}),
        (["-G1", "--mail-type=FAIL,REQUEUE"], {"notify": ["failed", "timed_out", "preempted"]}),
        (["-G1", "-C 'a100|h100'"], {"kinds": ["a100", "h100"]}),
        (["--gres=gpu:a100:2", "-C 'a100|h100'"], {"kinds": ["a100"]}),
        (["-n 2", "-C cpu"], {"kinds": ["cpu"]}),
        (["-G1", "-w n[1-2]", "-x bad"], {"nodes": ["n1", "n2"], "exclude": ["bad"]}),
        (["-G1", "-t 10", "--signal=B:10@60"], {"warn_signal": "USR1", "warn_s": 60.0}),
        (["-G1", "-J 'two words'"], {"name": "two-words"}),
    ],
)
def test_options_become_fields(lines: list[str], wanted: dict[str, object]) -> None:
    fields = job_of(*lines).fields
    assert {name: fields.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["-G 3", "-N 2"], "3 in all cannot be equally many on each of 2 nodes"),
        (["-G1", "-N 1-4"], "say --nodes=1"),
        (["--gres=gpu:a:1,gpu:b:1"], "devices of one kind"),
        (["--gres=shard:2"], "`shard`"),
        (["-G1", "-d afterok:1?afterok:2"], "`?`"),
        (["-G1", "-d after:1+5"], "`+MINUTES`"),
        (["-G1", "-C 'ib&a100'"], "expected device kinds"),
        (["--gres=gpu:a100:2", "-C skylake"], "the devices are of kind a100"),
        (["-n 2", "-C skylake"], "a job without GPUs runs on a device of kind cpu"),
        (["-G1", "-t soon"], "is no duration"),
        (["-G1", "-t 1", "--signal=USR1@60"], "fewer seconds than the time limit"),
        (["-G1", "-t 9", "--signal=R:USR1"], "there is no R"),
        (["-G1", "--mail-type=NEVER"], "NEVER: expected some of"),
        (["-G1", "--open-mode=x"], "expected append or truncate"),
        (["-G1", "--kill-on-invalid-dep=no"], "leave it out"),
        (["-G1", "-n 0"], "expected a number, 1 or more"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(lines: list[str], why: str) -> None:
    with pytest.raises(SbatchError, match=re.escape(why)):
        job_of(*lines)


def test_accounting_is_noted_and_nothing_is_silent() -> None:
    job = job_of("-G1", "--account=lab", "--wckey=x")
    assert [note.partition(" changes nothing here")[0] for note in job.notes] == [
        "job.sbatch:3: --account=lab",
        "job.sbatch:4: --wckey=x",
    ]
    assert len(job.became) == 3


def test_a_script_is_known_by_its_lines_or_its_suffix(tmp_path: Path) -> None:
    texts = {"a.sh": "#!/bin/sh\n#SBATCH -N 1\n", "b.sh": "#!/bin/sh\necho\n", "c.slurm": "x", "d.toml": "name = 1"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    assert [name for name in texts if is_script(str(tmp_path / name))] == ["a.sh", "c.slurm"]
    assert not is_script(str(tmp_path / "nowhere.sh"))
    assert not is_script(str(tmp_path))
    os.mkfifo(tmp_path / "fifo")
    assert not is_script(str(tmp_path / "fifo"))  # and is not waited for


def test_without_is_found_among_options_and_not_behind_the_script() -> None:
    words = ["-p", "gpu", "--without", "exclusive", "job.sbatch"]
    assert take_without(words) == ("exclusive", ["-p", "gpu", "job.sbatch"])
    behind = ["-p", "gpu", "job.sbatch", "--without", "x"]
    assert take_without(behind) == ("", behind)
