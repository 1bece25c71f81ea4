"""Workloads made up: the seed decides, the figures are those asked for, and mistakes name their key."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_simulator.engine import cluster_script
from penstock_simulator.traces import TraceError, generator
from penstock_simulator.traces.generator import (
    Bursty,
    Diurnal,
    GangSizeMix,
    Lognormal,
    Mixture,
    NameMix,
    Pareto,
    Poisson,
    Recipe,
    generate,
    speedups,
)
from sweeps import examples

TOML = """\
jobs = 400
seed = 5
name = "night"

[arrivals]
process = "bursty"
rate_per_h = 20
burst_rate_per_h = 600
calm_s = 7200
burst_s = 600

[gpus]
counts = [1, 8]
weights = [3, 1]

[gpu_time]
distribution = "mixture"
parts = [
    { distribution = "lognormal", median_s = 600, sigma = 1.5, weight = 4 },
    { distribution = "pareto", least_s = 3600, alpha = 1.1 },
]

[[models]]
name = "resnet"
speeds = { v100 = 4, k80 = 1 }

[[models]]
name = "bert"
weight = 3

[users]
count = 5
zipf = 1.5
"""
LOGNORMAL = Lognormal(median_s=600, sigma=1.0)


def made(**fields: Any) -> Recipe:
    return Recipe(**{"jobs": 2000, "arrivals": Poisson(rate_per_h=60), "gpu_time": LOGNORMAL, **fields})


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "spec.toml").write_text(TOML)
    return tmp_path / "spec.toml"


def test_a_recipe_is_read_and_made(spec: Path) -> None:
    trace = generate(generator.read(spec))
    assert (len(trace), trace.name, set(trace.num_gpus.tolist())) == (400, "night", {1, 8})
    assert set(trace.users) == {f"user{i}" for i in range(5)}
    assert 2 < Counter(trace.models)["bert"] / Counter(trace.models)["resnet"] < 4.5


@given(
    seed=st.integers(0, 2**32),
    arrivals=st.sampled_from(
        [
            Poisson(rate_per_h=60),
            Bursty(rate_per_h=1, burst_rate_per_h=1e4, calm_s=3600, burst_s=60),
            Diurnal(rate_per_h=60, swing=1.0),
        ]
    ),
    gpu_time=st.sampled_from([LOGNORMAL, Pareto(least_s=60, alpha=0.5), Mixture(parts=(LOGNORMAL,))]),
)
@settings(max_examples=examples(25), deadline=None)
def test_the_same_seed_makes_the_same_trace_and_every_trace_makes_sense(seed, arrivals, gpu_time) -> None:
    wanted = made(jobs=50, seed=seed, arrivals=arrivals, gpu_time=gpu_time, least_s=2.0, most_s=1e6)
    one, other = generate(wanted), generate(wanted)
    assert one.submit_s.tolist() == other.submit_s.tolist()
    assert one.duration_s.tolist() == other.duration_s.tolist()
    assert len(one) == 50
    assert one.submit_s[0] >= 0
    assert (np.diff(one.submit_s) >= 0).all()
    assert one.duration_s.min() >= 2.0
    assert one.duration_s.max() <= 1e6


def test_another_seed_makes_another_trace() -> None:
    assert generate(made(seed=1)).submit_s.tolist() != generate(made(seed=2)).submit_s.tolist()


def test_changing_one_part_leaves_the_others_as_they_are() -> None:
    one, other = generate(made()), generate(made(gpus=GangSizeMix(counts=(2,), weights=(1.0,))))
    assert one.submit_s.tolist() == other.submit_s.tolist()
    assert (one.duration_s / 2).tolist() == pytest.approx(other.duration_s.tolist(), abs=1.0)  # none below least_s


@pytest.mark.parametrize(
    ("arrivals", "per_h"),
    [
        (Poisson(rate_per_h=60), 60),
        (Diurnal(rate_per_h=60, swing=0.8), 60),
        (Bursty(rate_per_h=30, burst_rate_per_h=300, calm_s=3600, burst_s=400), (30 * 3600 + 300 * 400) / 4000),
    ],
)
def test_jobs_come_at_the_rate_asked_for(arrivals, per_h: float) -> None:
    trace = generate(made(jobs=30_000, arrivals=arrivals))
    assert 30_000 / (trace.submit_s[-1] / 3600) == pytest.approx(per_h, rel=0.06)


def test_bursts_make_the_gaps_more_uneven_than_chance_does() -> None:
    def unevenness(arrivals) -> float:
        gaps = np.diff(generate(made(arrivals=arrivals)).submit_s)
        return float(gaps.std() / gaps.mean())

    assert unevenness(Poisson(rate_per_h=60)) == pytest.approx(1.0, abs=0.1)
    assert unevenness(Bursty(rate_per_h=6, burst_rate_per_h=600, calm_s=3600, burst_s=360)) > 1.5


def test_more_jobs_come_at_the_peak_of_the_day() -> None:
    trace = generate(made(jobs=10_000, arrivals=Diurnal(rate_per_h=60, swing=0.8, peak_s=50_400)))
    hour = (trace.submit_s % 86_400) // 3600
    assert ((hour >= 11) & (hour < 17)).sum() > 3 * ((hour >= 23) | (hour < 5)).sum()


def test_device_time_has_the_median_and_the_tail_asked_for() -> None:
    many = made(jobs=20_000, least_s=1e-3)
    assert np.median(generate(many).duration_s) == pytest.approx(600, rel=0.05)
    heavy = generate(msgspec.structs.replace(many, gpu_time=Pareto(least_s=10, alpha=1.5)))
    assert heavy.duration_s.min() >= 10
    assert (heavy.duration_s > 100).mean() == pytest.approx(10**-1.5, rel=0.15)


def test_device_time_does_not_depend_on_the_number_of_devices() -> None:
    trace = generate(made(jobs=20_000, gpus=GangSizeMix(counts=(1, 4), weights=(1, 1)), least_s=1e-3))
    gpu_s = trace.num_gpus * trace.duration_s
    medians = [np.median(gpu_s[trace.num_gpus == n]) for n in (1, 4)]
    assert medians[0] == pytest.approx(medians[1], rel=0.08)


def test_a_few_users_have_most_jobs() -> None:
    trace = generate(made(users=NameMix(count=100, zipf=1.2), vcs=NameMix(count=2, zipf=0.0)))
    jobs = Counter(trace.users)
    assert jobs["user0"] > 5 * jobs["user20"]
    assert Counter(trace.vcs)["vc0"] == pytest.approx(1000, rel=0.1)


def test_speeds_come_out_in_the_form_that_simulations_take(spec: Path, tmp_path: Path) -> None:
    found = speedups(generator.read(spec))
    assert found == {"resnet": {"v100": 4.0, "k80": 1.0}}
    (tmp_path / "speeds.json").write_bytes(msgspec.json.encode(found))
    assert cluster_script.read(tmp_path / "speeds.json") == found


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rate_per_h = 20", "rate_ph = 20", r"arrivals\.rate_ph: unknown field; did you mean `rate_per_h`"),
        ("jobs = 400", "", r"jobs: missing"),
        ("jobs = 400", 'jobs = "many"', r"jobs: "),
        ('process = "bursty"', 'process = "weekly"', r"arrivals\.\w+: .*poisson"),
        ("median_s = 600", "median_s = -1", r"gpu_time\.parts\[0\]\.median_s"),
        ("weights = [3, 1]", "weights = [3]", r"gpus\.weights has 1 numbers; expected 2"),
        ("weights = [3, 1]", "weights = [0, 0]", r"gpus\.weights are all 0"),
        ("seed = 5", "seed = 5\nleast_s = 9\nmost_s = 5", r"least_s is 9; expected at most most_s, 5"),
        ("[arrivals]", "[arrivals", r"expected TOML"),
    ],
)
def test_a_mistake_in_a_recipe_names_its_key(spec: Path, old: str, new: str, message: str) -> None:
    spec.write_text(TOML.replace(old, new, 1))
    with pytest.raises(TraceError, match=rf"spec\.toml: .*{message}"):
        generator.read(spec)


def test_a_missing_recipe_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no file"):
        generator.read(tmp_path / "none.toml")


def test_users_choose_batches_for_each_of_their_devices_and_all_else_stays(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(TOML)
    plain = generator.read(tmp_path / "r.toml")
    (tmp_path / "r.toml").write_text(TOML.replace('name = "resnet"', 'name = "resnet"\nbatches = [16, 64]'))
    found, without = generate(generator.read(tmp_path / "r.toml")), generate(plain)
    assert without.batch_sizes is None
    assert found.batch_sizes is not None
    local = Counter(
        (str(model), int(batch // gpus))
        for model, batch, gpus in zip(found.models, found.batch_sizes, found.num_gpus, strict=True)
    )
    assert set(local) == {("resnet", 16), ("resnet", 64), ("bert", 0)}
    assert abs(local["resnet", 16] - local["resnet", 64]) < 0.4 * local["resnet", 16]
    assert (found.submit_s == without.submit_s).all()
    assert (found.duration_s == without.duration_s).all()
    assert list(found.models) == list(without.models)
