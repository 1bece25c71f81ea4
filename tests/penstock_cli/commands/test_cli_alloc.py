"""Allocations, on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from fake_gateway import FakeGateway

from penstock_log import AllocationSpec, request_bodies, views
from penstock_log.allocation_spec import PodOptions

Run = Callable[..., tuple[int, str, str]]


def test_what_follows_two_dashes_goes_to_sbatch(penstock: Run, gateway: FakeGateway) -> None:
    words = ("alloc", "add", "slurm", "--name", "lab", "--max-pilots", "4", "--walltime", "60", "--idle", "0")
    words += (
        "--kind",
        "a100,h100",
        "--gpus",
        "2",
        "--nodes",
        "2",
        "--env",
        "A=b",
        "--agents",
        "--",
        "--partition=gpu",
        "-A",
        "x",
    )
    assert penstock(*words)[:2] == (0, "added\n")
    (ask,) = gateway.asked
    assert isinstance(ask, request_bodies.AllocationRequest)
    assert (ask.name, ask.spec.max_pilots, ask.spec.walltime_s, ask.spec.idle_s) == ("lab", 4, 3600.0, 0.0)
    assert (ask.spec.kinds, ask.spec.gpus, ask.spec.nodes) == (("a100", "h100"), 2, 2)
    assert ask.spec.options == ("--partition=gpu", "-A", "x")
    assert (ask.spec.environment, ask.spec.agents) == ({"A": "b"}, True)
    assert ask.by


def test_setup_lines_come_from_a_file(penstock: Run, gateway: FakeGateway, tmp_path: Path) -> None:
    file = tmp_path / "setup.sh"
    file.write_text("module load cuda\nsource venv/bin/activate\n")
    assert penstock("alloc", "add", "slurm", "--name", "lab", "--setup", f"@{file}")[0] == 0
    (ask,) = gateway.asked
    assert isinstance(ask, request_bodies.AllocationRequest)
    assert ask.spec.setup == file.read_text()


def test_pods_have_an_image_and_what_a_template_says(penstock: Run, gateway: FakeGateway, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("spec:\n  nodeSelector: {gpu: a100}\n")
    words = ("alloc", "add", "kubernetes", "--name", "lab", "--image", "registry/penstock:1", "--namespace", "ml")
    words += ("--one-run", "--claim", "saved", "--pod-template", str(file))
    assert penstock(*words)[0] == 0
    (ask,) = gateway.asked
    assert isinstance(ask, request_bodies.AllocationRequest)
    pod = PodOptions(
        image="registry/penstock:1", namespace="ml", claim="saved", template={"spec": {"nodeSelector": {"gpu": "a100"}}}
    )
    assert (ask.spec.runs, ask.spec.pod) == (1, pod)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("kubernetes",), "no such allocation can be"),
        (("kubernetes", "--image", "a b"), "no such allocation can be"),
        (("kubernetes", "--image", "x", "--namespace", "A"), "no such allocation can be"),
        (("kubernetes", "--image", "x", "--pod-template", "/nowhere"), "expected a part of a Pod in YAML"),
        (("slurm", "--image", "x"), "slurm has no Pods"),
    ],
)
def test_pods_that_cannot_be_are_refused_before_they_are_asked(
    penstock: Run, gateway: FakeGateway, words: tuple[str, ...], said: str
) -> None:
    code, _, told = penstock("alloc", "add", *words, "--name", "lab")
    assert (code, said in told, gateway.asked) == (2, True, []), told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--walltime", "soon"), "--walltime 'soon' is no duration"),
        (("--walltime", "5s"), "no such allocation can be"),
        (("--backlog", "1000"), "no such allocation can be"),
        (("--setup", "@/nowhere"), "expected lines of shell"),
        (("--pool", "a b"), "no such allocation can be"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_asked(
    penstock: Run, gateway: FakeGateway, words: tuple[str, ...], said: str
) -> None:
    code, _, told = penstock("alloc", "add", "slurm", "--name", "lab", *words)
    assert (code, said in told, gateway.asked) == (2, True, []), told


def test_allocations_are_listed_and_shown_with_their_pilots(penstock: Run, gateway: FakeGateway) -> None:
    assert penstock("alloc", "ls")[1].startswith("there is no allocation; ")
    pilots = (
        views.PilotView(id="lab-2", state="running", provider_id="17", nodes=("lab-2",), submitted_s=1.0, joined_s=2.0),
        views.PilotView(id="lab-1", state="failed", provider_id="16", ended_s=1.0, reason="<script>\n: not found"),
    )
    spec = AllocationSpec(provider="slurm", max_pilots=4, options=("--partition=gpu",))
    one = views.AllocationView(name="lab", state="active", spec=spec, added_s=1.0, devices="2 a100", pilots=pilots)
    gateway.allocations = views.AllocationsView(allocations=(one,), seq=7)
    row = penstock("alloc", "ls")[1].splitlines()[1].split()
    assert row[:6] == ["lab", "slurm", "active", "1", "of", "4"]
    shown = penstock("alloc", "show", "lab")[1]
    assert "sbatch --partition=gpu" in shown
    assert ["lab-2", "running", "17"] in [line.split()[:3] for line in shown.splitlines()]
    assert json.loads(penstock("alloc", "show", "lab", "-o", "json")[1])["devices"] == "2 a100"
    code, _, told = penstock("alloc", "show", "other")
    assert (code, "known: lab" in told) == (4, True)


def test_of_a_thousand_pilots_those_on_their_way_are_shown_first_and_not_all(
    penstock: Run, gateway: FakeGateway
) -> None:
    running = [views.PilotView(id=f"lab-{n}", state="running", joined_s=1.0, submitted_s=1.0) for n in range(999)]
    waiting = views.PilotView(
        id="last", state="waiting", submitted_s=1.0, waits="Resources", reason="1 job would start"
    )
    spec = AllocationSpec(provider="slurm", max_pilots=1_000)
    refused = {"ann": "the executor runs jobs of its own user alone"}
    pilots = (*running, waiting)
    one = views.AllocationView(name="lab", state="active", spec=spec, added_s=1.0, pilots=pilots, refused=refused)
    gateway.allocations = views.AllocationsView(allocations=(one,), seq=7)
    lines = penstock("alloc", "show", "lab")[1].splitlines()
    assert "pilots: 999 running, 1 waiting" in lines
    assert any(line.startswith("refused: jobs of ann: the executor runs jobs of its own user alone;") for line in lines)
    first = next(at for at, line in enumerate(lines) if line.startswith("PILOT")) + 1
    assert lines[first].split()[0] == "last"
    assert "waits: Resources; 1 job would start" in lines[first]
    assert lines[-1] == "950 more; `--limit 0` lists all"
    assert len(penstock("alloc", "show", "lab", "--limit", "0")[1].splitlines()) == len(lines) + 949
    assert len(json.loads(penstock("alloc", "show", "lab", "-o", "json")[1])["pilots"]) == 1_000


@pytest.mark.parametrize("verb", ["rm", "pause", "resume"])
def test_an_allocation_is_acted_on_by_its_name(penstock: Run, gateway: FakeGateway, verb: str) -> None:
    assert penstock("alloc", verb, "lab", "--reason", "night")[:2] == (0, "done\n")
    (ask,) = gateway.asked
    assert isinstance(ask, request_bodies.ActRequest)
    assert (ask.id, ask.reason) == ("lab", "night")


def test_a_dry_run_shows_the_scripts_and_fails_where_the_provider_would_refuse(
    penstock: Run, gateway: FakeGateway
) -> None:
    gateway.trial = views.PilotTrialView(accepted=True, said="to start at noon", pilots=2, script="#!/bin/bash\ntrue\n")
    code, out, _ = penstock("alloc", "dry-run", "slurm")
    assert (code, "provider: to start at noon" in out, "now: 2 would be submitted" in out) == (0, True, True)
    assert "  #!/bin/bash\n  true\n" in out
    gateway.trial = msgspec.structs.replace(gateway.trial, accepted=False, said="sbatch: Invalid account")
    code, out, told = penstock("alloc", "dry-run", "slurm")
    assert (code, "Invalid account" in out, "would refuse" in told) == (1, True, True)
