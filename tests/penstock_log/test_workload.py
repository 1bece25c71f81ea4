"""The published models are told apart, and what skew is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import workload

PUBLISHED = {
    "vgg19": (0.717, True),
    "vgg16": (0.744, True),
    "vgg11": (0.774, True),
    "alexnet": (0.611, True),
    "resnet152": (0.060, False),
    "resnet101": (0.075, False),
    "resnet50": (0.112, False),
    "inception4": (0.044, False),
    "inception3": (0.138, False),
}
VGG16 = [
    *(64 * 3 * 9, 64 * 64 * 9, 128 * 64 * 9, 128 * 128 * 9, 256 * 128 * 9, 256 * 256 * 9, 256 * 256 * 9),
    *(512 * 256 * 9, *[512 * 512 * 9] * 5, 25088 * 4096, 4096 * 4096, 4096 * 1000),
]


@pytest.mark.parametrize("model", PUBLISHED)
@pytest.mark.parametrize("threshold", [workload.LOWEST, workload.THRESHOLD, workload.HIGHEST])
def test_every_threshold_that_can_be_set_splits_the_nine_models_as_published(model, threshold):
    of_model, consolidated = PUBLISHED[model]
    assert workload.consolidates(of_model, workload.checked(threshold)) is consolidated


def test_it_is_computed_from_tensor_sizes_as_published():
    assert workload.skew(4 * size for size in VGG16) == pytest.approx(PUBLISHED["vgg16"][0], abs=0.005)


@given(st.lists(st.integers(0, 10**12)))
def test_it_lies_between_an_even_share_and_1(sizes):
    found = workload.skew(sizes)
    assert 0.0 <= found <= 1.0
    if any(sizes):
        assert found >= 1 / len(sizes) * (1 - 1e-12)


def test_a_negative_size_is_refused():
    with pytest.raises(ValueError, match="expected 0 or more"):
        workload.skew([1, -1])


@pytest.mark.parametrize("threshold", [0.0, 0.139, 0.62, 1.0])
def test_a_threshold_that_would_split_them_otherwise_is_refused(threshold):
    with pytest.raises(ValueError, match=r"expected a number from 0.14 to 0.61"):
        workload.checked(threshold)
