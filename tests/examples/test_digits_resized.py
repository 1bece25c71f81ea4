"""The digits are learnt as well by a gang that is resized twice on its way, and each image is seen as often."""

from __future__ import annotations

from pathlib import Path

import pytest
from executor_stub import small_executor
from resized_example import NOISE, SAMPLES, Resized, Size, each_once, finite

EPOCHS = 12
FIXED = Size(1, 64)
RESIZED = [Size(1, 32, 60), Size(4, 128, 40), Size(2, 48)]


def training(folder: Path, name: str, seed: int = 0, epochs: int = EPOCHS) -> Resized:
    (folder / name).mkdir()
    return Resized(
        folder / name, folder / "x", "digits_mlp", params={"epochs": epochs, "width": 32, "lr": 0.03, "seed": seed}
    )


@pytest.mark.thorough
def test_a_gang_resized_from_one_to_four_to_two_sees_the_same_samples_and_learns_as_much(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("r")
    accuracies = []
    for seed in range(3):
        done = training(folder, f"fixed-{seed}", seed).run(FIXED)
        assert done is not None
        assert done.samples == EPOCHS * SAMPLES
        accuracies.append(done.metrics["accuracy"])

    resized = training(folder, "resized")
    *_, last = [resized.run(size) for size in RESIZED]
    assert last is not None
    assert finite(last)
    assert (last.samples, last.batch_size) == (EPOCHS * SAMPLES, 48)
    assert resized.seen() == each_once(EPOCHS)
    assert last.metrics["accuracy"] == pytest.approx(sum(accuracies) / 3, abs=NOISE)
    factors = [f"batch_size={size.batch_size} factor={(size.batch_size / 64) ** 0.5:.6g}" for size in RESIZED]
    assert [text.count(factor) for text, factor in zip(resized.logged, factors, strict=True)] == [1, 1, 1]


def test_a_gang_one_of_which_cannot_load_ends_as_a_whole_and_the_old_size_goes_on(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("r")
    job = training(folder, "job", epochs=1)
    job.run(Size(1, 64, 6))
    with small_executor(folder) as executor:
        ranks = job.start(executor, Size(3, 96), UNLOADABLE_RANK="1")
        ends = [rank.communicate(timeout=100)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1, 1]
    assert "CheckpointDamaged" in ends[1]
    assert "no room for step-6 on this device" in ends[1]
    assert all("PeerLost" in end for end in (ends[0], ends[2]))
    job.logged.append("")
    last = job.run(Size(1, 64))
    assert last is not None
    assert (last.samples, last.loop_steps) == (SAMPLES, 23 - 6)
    assert job.seen() == each_once(1)
