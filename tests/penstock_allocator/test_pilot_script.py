"""The scripts of a pilot: quoted, private, and of one node or several."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from penstock_allocator.pilot_script import PilotFolder, batch_script, node_script, write_pilot
from penstock_cluster.allocations import Allocation, Pilot
from penstock_log import AllocationSpec


def place(folder: Path) -> PilotFolder:
    return PilotFolder(folder / "lab-1", folder / "checkpoints")


@pytest.mark.parametrize(
    "spec",
    [
        AllocationSpec(provider="slurm"),
        AllocationSpec(provider="slurm", nodes=3, devices="fast:1@1.0:4GiB", setup="module load cuda"),
        AllocationSpec(provider="slurm", environment={"NAME": 'it\'s "odd" $(reboot) <script>'}, teardown="date"),
    ],
)
def test_the_scripts_are_shell(spec: AllocationSpec, tmp_path: Path) -> None:
    folder = tmp_path / "an odd 'name' $(touch oops)"
    allocation = Allocation(name="lab", spec=spec, added_s=1.0)
    write_pilot(place(folder), allocation, "lab-1", "a token")
    for script in (place(folder).node, place(folder).batch):
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


@pytest.mark.parametrize("agents", [False, True])
def test_agents_run_beside_the_executor_where_the_allocation_says_so(agents: bool, tmp_path: Path) -> None:
    allocation = Allocation(name="lab", spec=AllocationSpec(provider="slurm", agents=agents), added_s=1.0)
    assert ("--executor-only" in node_script(place(tmp_path), allocation, "lab-1")) is not agents


def test_the_token_is_its_owners_alone_and_no_script_has_it(tmp_path: Path) -> None:
    allocation = Allocation(name="lab", spec=AllocationSpec(provider="slurm"), added_s=1.0)
    write_pilot(place(tmp_path), allocation, "lab-1", "penstock-node-secret")
    assert oct(place(tmp_path).token.stat().st_mode)[-3:] == "600"
    assert oct(place(tmp_path).folder.stat().st_mode)[-3:] == "700"
    assert "secret" not in place(tmp_path).node.read_text() + place(tmp_path).batch.read_text()


def test_each_node_of_a_pilot_of_several_has_a_name_of_its_own(tmp_path: Path) -> None:
    allocation = Allocation(name="lab", spec=AllocationSpec(provider="slurm", nodes=2), added_s=1.0)
    assert 'node=lab-1-"$rank"' in node_script(place(tmp_path), allocation, "lab-1")
    assert "srun --ntasks-per-node=1 --nodes=2 --cpu-bind=none" in batch_script(place(tmp_path), allocation)


def test_a_folder_whose_files_an_earlier_try_has_left_is_written_anew(tmp_path: Path) -> None:
    allocation = Allocation(name="lab", spec=AllocationSpec(provider="slurm"), added_s=1.0)
    for token in ("first", "second"):
        write_pilot(place(tmp_path), allocation, "lab-1", token)
    assert place(tmp_path).token.read_text() == "second"


def test_the_pilots_that_are_kept_do_not_end_for_want_of_runs(tmp_path: Path) -> None:
    spec = AllocationSpec(provider="slurm", min_pilots=1, max_pilots=3, idle_s=45.0)
    allocation = Allocation(name="lab", spec=spec, added_s=1.0)
    allocation.pilots.update({name: Pilot(id=name, planned_s=2.0) for name in ("lab-4", "lab-5")})

    def leaves_idle_s(pilot_id: str) -> str:
        script = node_script(place(tmp_path), allocation, pilot_id)
        return script.partition("LEAVE_IDLE_S=")[2].partition("\n")[0]

    assert [leaves_idle_s(name) for name in ("lab-4", "lab-5")] == ["0", "45"]
    del allocation.pilots["lab-4"]  # another one is planned in its place once lab-5 is over too
    del allocation.pilots["lab-5"]
    assert leaves_idle_s("lab-6") == "0"


def test_a_node_has_a_new_folder_whoever_has_made_others_of_its_name(tmp_path: Path) -> None:
    spec = AllocationSpec(provider="slurm", setup='stat -c "%a %n" "$data"; exit 3')
    (tmp_path / f"penstock-{os.getuid()}-lab-1").mkdir()
    (tmp_path / f"penstock-{os.getuid()}-lab-1" / "key").write_text("planted")
    script = node_script(place(tmp_path), Allocation(name="lab", spec=spec, added_s=1.0), "lab-1")
    ran = [
        subprocess.run(
            ["bash", "-c", script],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        for _ in range(2)
    ]
    assert [(one.returncode, one.stdout[:4]) for one in ran] == [(3, "711 ")] * 2
    assert ran[0].stdout != ran[1].stdout
    assert [entry.name for entry in tmp_path.iterdir()] == [f"penstock-{os.getuid()}-lab-1"]
