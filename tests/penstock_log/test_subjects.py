import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_log import JobSpec, subjects, workload
from penstock_log.services import WRITERS


@given(st.sampled_from(sorted(WRITERS)), st.from_regex(r"\A[a-z0-9_-]+\Z"))
def test_a_subject_says_its_kind_its_id_and_its_writer(kind, entity_id):
    subject = subjects.entity(kind, entity_id)
    assert subjects.entity_of(subject) == (kind, entity_id)
    assert subjects.writer_of(subject) == WRITERS[kind]


@pytest.mark.parametrize("bad", ["", "a.b", "a b", "*", ">", "a\n"])
def test_an_id_that_would_break_out_of_its_token_is_refused(bad):
    with pytest.raises(ValueError, match="cannot be part of a subject"):
        subjects.job(bad)


def test_each_kind_of_entity_has_one_writer_and_no_service_may_write_anothers():
    patterns = [p for service in set(WRITERS.values()) for p in subjects.writable(service)]
    assert len(patterns) == len(set(patterns)) == len(WRITERS)


def test_a_subject_outside_of_the_log_has_no_writer():
    assert subjects.writer_of("penstock.tel.node.n1") == ""
    assert subjects.writer_of("penstock.evt.unknown.n1") == ""


def spec(**more: object) -> JobSpec:
    return JobSpec(**{"name": "a", "command": ("python", "train.py", "--lr", "1"), **more})  # type: ignore[arg-type]


def test_with_a_model_named_arguments_do_not_tell_workloads_apart():
    assert workload.key(spec(model="mlp")) == workload.key(
        spec(model="mlp", command=("python", "train.py", "--lr", "2"))
    )
    assert workload.key(spec()) != workload.key(spec(command=("python", "train.py", "--lr", "2")))


@pytest.mark.parametrize("more", [{"batch_size": 8}, {"digest": "x"}, {"model": "cnn"}])
def test_batch_size_script_and_model_tell_workloads_apart(more):
    assert workload.key(spec(model="mlp")) != workload.key(spec(**{"model": "mlp", **more}))
