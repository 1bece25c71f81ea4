"""A dry estimate against what torch's own profiler counts; without torch, what is said then."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from penstock.estimate import EstimateError, Make, measured, need_of, training
from penstock.estimate_recurrent import row_floats, scratch_bytes, workspace_bytes

TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not TORCH, reason="torch is not installed: the dry estimate was not tried")
if TORCH:
    import estimated_models as models

MIB = 2**20


def test_an_estimate_without_torch_says_where_to_run_it() -> None:
    if TORCH:
        pytest.skip("torch is installed")
    with pytest.raises(EstimateError, match="run it where the job's own packages are"):
        need_of(lambda: lambda: None)


def test_one_iteration_is_too_few_because_optimizer_state_appears_in_it() -> None:
    with pytest.raises(EstimateError, match="expected at least 2"):
        need_of(lambda: lambda: None, iterations=1)


@needs_torch
@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "cnn",
        "transformer",
        "lstm",
        "lstm_both_ways",
        "gru",
        "residual",
        "embedding",
        "accumulating",
    ],
)
def test_an_estimate_is_within_a_fifth_of_the_peak_that_the_profiler_counts(name: str) -> None:
    make: Make = getattr(models, name)()
    need, (persistent_bytes, peak_bytes) = need_of(make), models.profiled(make)
    assert need.persistent_bytes == pytest.approx(persistent_bytes, rel=0.05)
    assert need.persistent_bytes + need.ephemeral_bytes == pytest.approx(peak_bytes, rel=0.2)


@needs_torch
def test_parameters_gradients_and_adams_state_are_persistent() -> None:
    need = need_of(models.linear(optimizer="Adam"), framework_bytes=0)
    weights = 1024 * 1024 * 4
    assert need.persistent_bytes == pytest.approx(4 * weights, rel=0.01)
    assert need_of(models.linear(optimizer="SGD")).persistent_bytes == pytest.approx(2 * weights, rel=0.01)


@needs_torch
@pytest.mark.parametrize("how", ["cpu", "cuda", "cuda:0", "cuda()"])
def test_a_model_that_is_put_on_a_device_is_estimated_where_there_is_none(how: str) -> None:
    need, there = need_of(models.moved(how), framework_bytes=0), need_of(models.linear("Adam"), framework_bytes=0)
    assert need.persistent_bytes == pytest.approx(there.persistent_bytes, rel=0.01)
    assert need.ephemeral_bytes == pytest.approx(there.ephemeral_bytes, rel=0.05)


@needs_torch
def test_gradients_that_an_iteration_gives_back_are_ephemeral() -> None:
    kept, given_back = need_of(models.linear(optimizer="SGD")), need_of(models.linear(optimizer="SGD", give_back=True))
    weights = 1024 * 1024 * 4
    assert kept.persistent_bytes - given_back.persistent_bytes == pytest.approx(weights, rel=0.01)
    assert kept.persistent_bytes + kept.ephemeral_bytes == pytest.approx(
        given_back.persistent_bytes + given_back.ephemeral_bytes, rel=0.1
    )


@needs_torch
def test_a_model_larger_than_the_host_is_estimated_without_taking_its_memory() -> None:
    need = need_of(models.huge)
    assert need.persistent_bytes == 1 << 40
    assert need.framework_bytes < 1 << 33


@needs_torch
@pytest.mark.parametrize(
    ("steps", "rows", "inputs", "hidden"), [(50, 32, 64, 256), (10, 7, 300, 64), (3, 1, 1, 1), (20, 64, 64, 33)]
)
def test_an_lstm_layers_workspace_is_what_its_kernel_takes(steps: int, rows: int, inputs: int, hidden: int) -> None:
    assert workspace_bytes(steps, rows, inputs, hidden) == models.lstm_workspace_bytes(steps, rows, inputs, hidden)


@needs_torch
def test_an_lstm_for_a_gpu_is_counted_step_by_step() -> None:
    steps = 50 * 32 * 256 * 4  # one value for each step, row and unit
    assert need_of(models.recurrent_on_gpu).ephemeral_bytes > 10 * steps
    assert models.onednn_is_on()


@needs_torch
def test_an_lstm_on_the_host_needs_what_its_kernel_keeps() -> None:
    assert need_of(models.lstm()).ephemeral_bytes > 2 * workspace_bytes(50, 32, 64, 256)


@needs_torch
def test_an_iteration_may_read_its_loss() -> None:
    assert need_of(models.reading).persistent_bytes > 0


@needs_torch
def test_what_tensors_take_when_they_have_content_is_what_was_estimated() -> None:
    make = models.linear(optimizer="Adam")
    need, real = need_of(make, framework_bytes=7), measured(make, framework_bytes=7)
    assert real.persistent_bytes == need.persistent_bytes
    assert real.ephemeral_bytes == pytest.approx(need.ephemeral_bytes, rel=0.05)
    assert real.framework_bytes == need.framework_bytes == 7


def _refuses() -> Callable[[], object]:
    def step() -> object:
        raise KeyError("lr")

    return step


@needs_torch
@pytest.mark.parametrize(
    ("make", "message"),
    [(_refuses, "KeyError: 'lr'; keep loading, saving"), (lambda: 3, "returned int; expected a function")],
)
def test_a_job_that_cannot_be_estimated_says_why(make: Any, message: str) -> None:
    with pytest.raises(EstimateError, match=message):
        need_of(make)


def test_a_kernels_rows_are_whole_cache_lines_and_never_share_them() -> None:
    assert [row_floats(length) for length in (1, 16, 17, 256, 250, 512)] == [16, 16, 32, 272, 272, 528]


def test_a_backward_pass_takes_more_than_a_forward_pass_where_weights_are_turned() -> None:
    there, back = (scratch_bytes(50, 32, 64, 256, backward=backward) for backward in (False, True))
    assert there == (50 * 32 + 64 + 256) * row_floats(1024) * 4
    assert back == there + 1024 * row_floats(256) * 4  # rows of 64 are as oneDNN wants them


def test_a_training_is_built_when_it_is_made_and_not_before() -> None:
    seen: list[str] = []
    training(
        model=lambda: seen.append("model"),
        optimizer=seen.append,
        batch=lambda: ("batch",),
        loss=lambda *_: seen.append("loss"),
    )
    assert seen == []
