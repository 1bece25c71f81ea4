"""Submitting elastic jobs: the flags, the file, the client's fields, and what people are told about wrong ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_gateway import FakeGateway

from penstock_cli import spec_file
from penstock_cli.spec_file import SpecError
from penstock_log import Batch, JobSpec
from penstock_log.validation import BadInput

Run = Callable[..., tuple[int, str, str]]
FILE = """\
name = "digits"
command = ["true"]
gpus = "1..8"

[batch]
min = 64
max = 512
per_gpu_max = 128
step = 64
base = 128
lr = "linear"
"""
MEANT = {
    "gpus": 1,
    "min_gpus": 1,
    "max_gpus": 8,
    "batch": Batch(min=64, max=512, per_gpu_max=128, step=64, base=128, lr="linear"),
}
SWEEP = """\
name = "search"
metric = "accuracy"
trials = 8
[job]
name = "trial"
command = ["true"]
{job}
[space.lr]
kind = "uniform"
low = 0.001
high = 0.1
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def only(gateway: FakeGateway) -> JobSpec:
    (spec,) = gateway.specs.values()
    return spec


def shape(spec: JobSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in MEANT}


def told(here: Path, text: str, name: str = "job.toml", **flags: object) -> str:
    (here / name).write_text(text)
    with pytest.raises(SpecError) as caught:
        spec_file.job(spec_file.read(name, str), flags)
    return str(caught.value)


def test_the_file_the_flags_and_the_clients_fields_say_the_same(
    penstock: Run, gateway: FakeGateway, here: Path
) -> None:
    (here / "job.toml").write_text(FILE)
    flags = "--gpus 1..8 --batch 64..512 --per-gpu-max 128 --batch-step 64 --batch-base 128 --lr-rule linear"
    assert penstock("submit", "job.toml", "--id", "file")[0] == 0
    assert penstock("submit", "--id", "flags", *flags.split(), "--", "true")[0] == 0

    async def by_fields() -> None:
        async with gateway.client() as client:
            await client.submit(name="a", id="fields", command=("true",), gpus="1..8", batch=MEANT["batch"])
            await client.submit(JobSpec(name="a", id="spec", command=("true",), **MEANT))

    asyncio.run(by_fields())
    assert [shape(spec) for spec in gateway.specs.values()] == [MEANT] * 4


@pytest.mark.parametrize("typed", ["1-8", "1:8", " 1 .. 8 "])
def test_a_range_may_be_typed_as_other_schedulers_have_it(penstock: Run, gateway: FakeGateway, typed: str) -> None:
    assert penstock("submit", "--gpus", typed, "--batch", "256", "--", "true")[0] == 0
    spec = only(gateway)
    assert (spec.min_gpus, spec.max_gpus, spec.batch_size, spec.batch) == (1, 8, 256, None)


def test_flags_make_an_elastic_file_fixed_again(penstock: Run, gateway: FakeGateway, here: Path) -> None:
    (here / "job.toml").write_text(FILE)
    assert penstock("submit", "job.toml", "--gpus", "4", "--batch", "128")[0] == 0
    spec = only(gateway)
    assert (spec.gpus, spec.batch_size, spec.elastic) == (4, 128, False)


def test_a_flag_changes_one_entry_of_the_files_batch(penstock: Run, gateway: FakeGateway, here: Path) -> None:
    (here / "job.toml").write_text(FILE)
    assert penstock("submit", "job.toml", "--lr-rule", "sqrt", "--batch", "32..256")[0] == 0
    assert only(gateway).batch == Batch(min=32, max=256, per_gpu_max=128, step=64, base=128, lr="sqrt")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--gpus 8..1 --batch 64", '--gpus: got "8..1"; the fewest devices come first: "1..8"'),
        ("--gpus 0..4 --batch 64", '--gpus: got "0..4"; expected from 1 to 65536 devices'),
        ("--gpus 1.. --batch 64", "--gpus: expected a whole number from 1 to 65536, or a range such as"),
        ("--gpus a..b --batch 64", "--gpus: expected a whole number from 1 to 65536, or a range such as"),
        ("--gpus 1..8 --batch lots", "--batch 'lots' is no batch; expected examples over all devices, such as 256, or"),
        ("--gpus 1..8 --batch 64 --lr-rule sqrt", "--batch 64 never changes; expected a range, such as 64..256"),
        ("--gpus 1..8", "gpus (given on the command line): 1 to 8 devices need a batch size to divide among them; set"),
        ("--batch 512..64", "batch (given on the command line): min is 512 and max 64; expected the smallest batch"),
        (
            "--gpus 1..4 --batch 512..1024 --per-gpu-max 64",
            "batch (given on the command line): the smallest, 512, does not fit on 4 devices of at most 64 samples",
        ),
        (
            "--gpus 1..4 --batch 64 --sharing lane",
            "sharing (given on the command line): an elastic job has its devices to itself, got `lane`; leave",
        ),
    ],
)
def test_what_is_wrong_with_flags_is_said_in_one_line(
    penstock: Run, gateway: FakeGateway, flags: str, expected: str
) -> None:
    code, out, err = penstock("submit", *flags.split(), "--", "true")
    assert (code, out, gateway.specs) == (2, "", {})
    assert err.startswith(f"penstock: {expected}"), err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ('"1..8"', '"8..1"', 'job.toml:3: gpus: got "8..1"; the fewest devices come first: "1..8"'),
        ('"1..8"', '"1..x"', "job.toml:3: gpus: expected a whole number from 1 to 65536, or a range such as"),
        ('"1..8"', '"600..70000"', 'job.toml:3: gpus: got "600..70000"; expected from 1 to 65536 devices'),
        ("max = 512", "max = 32", "job.toml:5: batch: min is 64 and max 32; expected the smallest batch first"),
        ("base = 128", "base = 32", "job.toml:5: batch: base is 32; expected one from min (64) to max (512)"),
        ("max = 128", "max = 7", "job.toml:5: batch: the smallest, 64, does not fit on 8 devices of at most 7 samples"),
        ("step = 64", "step = 0", "job.toml:9: batch.step: expected a whole number from 1 to"),
        ("linear", "lineal", 'job.toml:11: batch.lr: expected one of "callback", "keep", "linear", "sqrt", got'),
        ('"1..8"', '"128..600"\nbatch_size = 32', "job.toml:4: batch_size: 32 is outside of batch, 64 to 512; it is"),
        ('"1..8"', '"600..800"', "job.toml:7: batch.max: 512 is less than the fewest devices, 600; expected a sample"),
        ('"1..8"', '"1..8"\nmax_gpus = 4', 'job.toml:4: max_gpus: 4 stands beside gpus = "1..8"; leave one of them'),
        ('"1..8"', "16\nmax_gpus = 8\nmin_gpus=2", "job.toml:3: gpus: 16 is outside of min_gpus, 2, to max_gpus, 8"),
        ('"1..8"', '"1..8"\nprocesses = "node"', "job.toml:4: processes: an elastic job has a process for each device"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(here: Path, before: str, after: str, expected: str) -> None:
    assert before in FILE
    said = told(here, FILE.replace(before, after))
    assert said.startswith(expected), said


def test_an_elastic_job_needs_a_batch_to_divide(here: Path) -> None:
    said = told(here, FILE.partition("\n[batch]")[0])
    assert said.startswith("job.toml:3: gpus: 1 to 8 devices need a batch size to divide among them; set `batch_size`")


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ('gpus = "1..4"\nbatch_size = 64', "sweep.toml:7: job.gpus: trials are sized by their sweep; give the job one"),
        ("batch = { min = 8, max = 64 }", "sweep.toml:7: job.batch: trials are sized by their sweep; give the job one"),
        ('gpus = "4..1"', 'sweep.toml:7: job.gpus: got "4..1"; the fewest devices come first: "1..4"'),
    ],
)
def test_trials_are_not_elastic_but_sized_by_their_sweep(here: Path, job: str, expected: str) -> None:
    (here / "sweep.toml").write_text(SWEEP.format(job=job))
    with pytest.raises(SpecError) as caught:
        spec_file.sweep(spec_file.read("sweep.toml", str))
    assert str(caught.value).startswith(expected), str(caught.value)


def test_the_client_says_what_is_wrong_with_fields(penstock: Run, gateway: FakeGateway) -> None:
    async def submit() -> None:
        async with gateway.client() as client:
            await client.submit(name="a", command=("true",), gpus="4..1", batch_size=64)

    with pytest.raises(BadInput, match=r'^\$\.gpus: got "4\.\.1"; the fewest devices come first: "1\.\.4"$'):
        asyncio.run(submit())
