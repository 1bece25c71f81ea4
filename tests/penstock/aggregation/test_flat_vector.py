"""Values become one flat vector and come back, and what cannot is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.aggregation.flat_vector import FlatVector, parts_of
from penstock.sessions.setup import SessionError
from penstock_log.aggregation_messages import PART_BYTES


def test_values_of_any_shapes_come_back_as_they_were() -> None:
    rng = np.random.default_rng(1)
    values = {
        "w": rng.standard_normal((3, 5)).astype("f4"),
        "b": rng.standard_normal(7).astype("f4"),
        "s": np.ones((), "f4"),
    }
    vector = FlatVector(values, servers=2)
    vector.pack(values)
    copies = {name: np.zeros_like(value) for name, value in values.items()}
    vector.unpack(copies)
    assert all(np.array_equal(copies[name], value) for name, value in values.items())
    assert sum(vector.layout.parts) == vector.data.size == 3 * 5 + 7 + 1
    assert len(vector.layout.parts) == 2


def test_half_floats_are_widened_and_narrowed_again() -> None:
    values = [np.arange(4, dtype="f2")]
    vector = FlatVector(values)
    assert vector.layout.dtype == "f4"
    vector.pack(values)
    vector.data *= 2
    vector.unpack(values)
    assert values[0].tolist() == [0, 2, 4, 6]
    assert values[0].dtype == np.float16


def test_doubles_stay_doubles() -> None:
    assert FlatVector(np.zeros(3)).layout.dtype == "f8"


def test_tensors_of_torch_come_back_as_they_were() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its tensors are not tried")
    model = torch.nn.Linear(3, 2)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    vector = FlatVector(model)
    vector.pack(model)
    vector.data += 1
    vector.unpack(model)
    assert all(torch.equal(now, old + 1) for now, old in zip(model.parameters(), before, strict=True))
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([], "without any"),
        (3.0, "without any"),
        ([None], "value 0 is None; expected .*; of a parameter without a gradient, give zeros"),
        ([1.0], "value 0 is float; expected a numpy array"),
        ([np.zeros(2, "i4")], "values of type int32 came"),
        ([np.zeros(2), np.zeros(2, "f4")], "values of type float32, float64 came"),
        ([np.zeros(0, "f4")], "all values are empty"),
    ],
)
def test_what_is_no_vector_is_refused_by_name(values: object, reason: str) -> None:
    with pytest.raises(SessionError, match=reason):
        FlatVector(values)


def test_a_mapping_is_in_the_order_of_its_names_however_a_process_has_filled_it() -> None:
    one, other = {"a": np.full(2, 1, "f4"), "b": np.full(2, 5, "f4")}, {"b": np.zeros(2, "f4"), "a": np.zeros(2, "f4")}
    vector = FlatVector(one)
    assert vector.layout == FlatVector(other).layout
    vector.pack(one)
    vector.unpack(other)
    assert {name: values.tolist() for name, values in other.items()} == {"a": [1, 1], "b": [5, 5]}
    with pytest.raises(SessionError, match="these differ: b, c"):
        vector.pack({"a": one["a"], "c": one["b"]})


def test_values_of_as_many_elements_but_of_other_shapes_or_names_have_another_layout() -> None:
    values = [{"a": np.zeros((2, 3), "f4")}, {"b": np.zeros((2, 3), "f4")}, np.zeros((3, 2), "f4"), np.zeros(6, "f4")]
    layouts = {FlatVector(each).layout for each in values}
    assert len({layout.parts for layout in layouts}) == 1
    assert len(layouts) == len(values)


def test_views_scalars_and_what_is_empty_come_back_as_they_were() -> None:
    base, spaced = np.arange(12, dtype="f4").reshape(3, 4), np.arange(10, dtype="f4")
    values = [np.zeros((0, 5), "f4"), np.array(2, "f4"), base.T, spaced[::2], np.ones(3, "f2")]
    vector = FlatVector(values)
    vector.pack(values)
    vector.data += 1
    vector.unpack(values)
    assert values[1] == 3
    assert np.array_equal(base, np.arange(12).reshape(3, 4) + 1)
    assert spaced.tolist() == [1, 1, 3, 3, 5, 5, 7, 7, 9, 9]
    assert values[4].tolist() == [2, 2, 2]


def test_what_cannot_be_written_into_is_refused_by_name() -> None:
    values = np.zeros(3, "f4")
    values.flags.writeable = False
    vector = FlatVector(values)
    vector.pack(values)
    with pytest.raises(SessionError, match="value 0 is read-only"):
        vector.unpack(values)


def test_a_shape_that_changes_is_refused_by_name() -> None:
    vector = FlatVector([np.zeros((2, 3), "f4"), np.zeros(3, "f4")])
    with pytest.raises(SessionError, match=r"value 1 of shape \(4,\) came, and \(3,\) was aggregated at first"):
        vector.pack([np.zeros((2, 3), "f4"), np.zeros(4, "f4")])
    with pytest.raises(SessionError, match="1 values came, and 2 was"):
        vector.unpack([np.zeros((2, 3), "f4")])


def test_no_part_is_longer_than_the_longest_and_all_are_about_as_long() -> None:
    vector = np.zeros(3 * PART_BYTES // 4 + 1, "f4")
    parts = parts_of(vector, 1)
    assert len(parts) == 4
    assert max(parts) - min(parts) <= 1
    assert max(parts) * 4 <= PART_BYTES
