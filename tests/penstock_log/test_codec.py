import math
import re
from typing import get_args

import msgspec
import pytest
from fact_factories import submitted
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock_log import (
    AllocationSpec,
    AnyEvent,
    Batch,
    Choice,
    CodecError,
    Commit,
    Demand,
    Device,
    JobCancelled,
    JobSpec,
    MemoryNeed,
    MisplacedFact,
    NodeJoined,
    RunEnded,
    SweepSpec,
    UserRemoved,
    decode,
    decode_at,
    encode,
    kind_of,
    subject_of,
    subjects,
    tag_of,
)
from penstock_log.codec import UPCASTS
from penstock_log.services import WRITERS
from sweeps import examples

FINITE = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12)
NAME = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,20}\Z")
st.register_type_strategy(float, FINITE)


def needs() -> st.SearchStrategy[MemoryNeed]:
    size = st.integers(0, 2**40)
    return st.builds(MemoryNeed, persistent_bytes=size, framework_bytes=size, ephemeral_bytes=size)


def specs() -> st.SearchStrategy[JobSpec]:
    parameter = TEXT | st.integers(-(2**53), 2**53) | FINITE | st.booleans()
    return st.builds(
        JobSpec,
        name=NAME,
        command=st.lists(TEXT, min_size=1, max_size=3).map(tuple),
        id=st.just(""),
        pool=NAME,
        kinds=st.lists(NAME, max_size=2).map(tuple),
        gpus=st.integers(1, 64),
        retries=st.integers(0, 100),
        memory_bytes=st.integers(0, 2**40),
        batch_size=st.integers(0, 2**20),
        min_gpus=st.integers(0, 8),
        max_gpus=st.integers(0, 64),
        batch=st.none() | st.builds(Batch, min=st.integers(1, 9), max=st.integers(9, 99)),
        backoff_s=st.floats(0, 1e6),
        grace_s=st.floats(0, 1e6),
        checkpoint_s=st.floats(0, 1e6),
        duration_s=st.floats(0, 1e6),
        sharing=st.sampled_from(("exclusive", "lane", "fraction")),
        fraction=st.floats(0.01, 1.0),
        memory=st.none() | needs(),
        priority=st.integers(-1000, 1000),
        env=st.dictionaries(TEXT, TEXT, max_size=2),
        params=st.dictionaries(TEXT, parameter, max_size=2),
    )


def demands() -> st.SearchStrategy[Demand]:
    return st.builds(
        Demand,
        job_id=TEXT,
        epoch=st.integers(0, 2**31),
        gpus=st.integers(1, 64),
        batch_size=st.integers(0, 2**20),
        kinds=st.lists(NAME, max_size=2).map(tuple),
        gives=st.dictionaries(TEXT, st.integers(1, 64), max_size=2),
        reason=TEXT,
    )


st.register_type_strategy(MemoryNeed, needs())
st.register_type_strategy(Demand, demands())
st.register_type_strategy(JobSpec, specs())
st.register_type_strategy(
    AllocationSpec,
    st.builds(
        AllocationSpec,
        provider=st.sampled_from(("slurm", "local", "ssh")),
        options=st.lists(NAME, max_size=2).map(tuple),
        setup=TEXT,
        environment=st.dictionaries(NAME, NAME, max_size=2),
    ),
)
st.register_type_strategy(Choice, st.builds(Choice, values=st.lists(FINITE, min_size=1, max_size=3).map(tuple)))
st.register_type_strategy(
    SweepSpec,
    st.builds(SweepSpec, name=NAME, id=st.just(""), trials=st.integers(0, 100_000), max_gpus=st.integers(1, 9)),
)


@pytest.mark.parametrize("event", get_args(AnyEvent), ids=tag_of)
@settings(max_examples=examples(25), deadline=None)
@given(data=st.data())
def test_every_fact_survives_the_codec(event, data):
    fact = data.draw(st.builds(event))
    commit = Commit(id="c1", actor="test/1", facts=(fact,), cause=7)
    assert decode(encode(commit)) == commit


def test_every_tag_is_its_own_and_carries_a_version():
    tags = [tag_of(event) for event in get_args(AnyEvent)]
    assert len(set(tags)) == len(tags)
    assert all(tag.rsplit(".", 1)[1].removeprefix("v").isdigit() for tag in tags)
    assert not set(UPCASTS) & set(tags)


def test_a_node_of_the_first_version_gets_the_devices_it_counted():
    body = b'{"id":"c","actor":"executor/n1","facts":[{"type":"node.joined.v1","at_s":1,"node_id":"n1","gpus":2,"kind":"v100","memory_bytes":16}]}'  # noqa: E501 the body as it was
    devices = tuple(Device(index=i, kind="v100", memory_bytes=16, backend="cuda") for i in range(2))
    assert decode(body).facts == (NodeJoined(at_s=1.0, node_id="n1", devices=devices),)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_number_that_json_cannot_hold_is_refused_with_its_place(number):
    fact = RunEnded(at_s=1.0, job_id="j", epoch=1, node_id="n", outcome="completed", metrics={"loss": number})
    with pytest.raises(CodecError, match=r"commit\.facts\[0\]\.metrics\.loss is not a finite number"):
        encode(Commit(id="c", actor="a", facts=(fact,)))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{nonsense", "JSON is malformed"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"id":"c","actor":"a","facts":[{"type":"job.submitted.v9","at_s":1}]}', "job.submitted.v9"),
        (b'{"id":"c","actor":"a","facts":[{"type":"node.joined.v1","at_s":1}]}', "gpus"),
        (b'{"id":"\xff","actor":"a","facts":[]}', "invalid start byte"),
        (b'{"id":"c","actor":"a","facts":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion depth"),
    ],
)
def test_bytes_that_are_no_commit_are_refused_with_the_reason(body, message):
    with pytest.raises(CodecError, match=message):
        decode(body)


def test_a_reader_ignores_fields_that_a_newer_writer_added():
    raw = msgspec.json.decode(encode(Commit(id="c", actor="a", facts=(submitted(),))))
    raw["facts"][0]["spec"]["colour"] = "blue"
    raw["flavour"] = "new"
    assert decode(msgspec.json.encode(raw)).facts == (submitted(),)


@pytest.mark.parametrize("event", get_args(AnyEvent), ids=tag_of)
def test_every_fact_belongs_to_one_kind_of_entity_that_has_a_writer(event: type) -> None:
    assert kind_of(event) in WRITERS


def test_every_kind_of_entity_has_facts() -> None:
    assert {kind_of(event) for event in get_args(AnyEvent)} == set(WRITERS)


@settings(max_examples=examples(60))
@given(st.from_type(AnyEvent), st.sampled_from(sorted(WRITERS)), NAME)
def test_a_fact_is_heard_on_its_own_subject_and_on_no_other(fact: AnyEvent, kind: str, entity_id: str) -> None:
    assume("<factory>" not in repr(fact))  # a default that hypothesis takes for a value, which none is
    body = encode(Commit(id="c1", actor="anybody", facts=(fact,)))
    assume(not re.search(rb"[0-9]{19}", body))  # numbers that no place helps
    own, other = subject_of(fact), subjects.entity(kind, entity_id)
    if own.count(".") == 3 and "/" not in own:
        assert encode(decode_at(own, body)) == body
    if other != own:
        with pytest.raises(MisplacedFact, match="belongs on"):
            decode_at(other, body)


def test_one_fact_out_of_place_drops_the_commit() -> None:
    facts = (JobCancelled(job_id="j1", at_s=0.0), JobCancelled(job_id="j2", at_s=0.0))
    with pytest.raises(MisplacedFact, match=r"gateway wrote job.cancelled.v1 on penstock.evt.job.j1, .* on .*job.j2"):
        decode_at(subjects.job("j1"), encode(Commit(id="c1", actor="gateway/1", facts=facts)))


@pytest.mark.parametrize("job_id", ["a.b", "..", "/etc/passwd", "a/b", "../../etc"])
def test_an_id_that_would_be_several_subjects_or_folders_names_no_entity(job_id: str) -> None:
    fact = JobCancelled(job_id=job_id, at_s=0.0)
    with pytest.raises(MisplacedFact, match=rf"belongs on penstock\.evt\.job\.{re.escape(job_id)}"):
        decode_at(f"penstock.evt.job.{job_id}", encode(Commit(id="c1", actor="gateway/1", facts=(fact,))))


def test_a_fact_about_nobody_belongs_nowhere() -> None:
    body = encode(Commit(id="c1", actor="gateway/1", facts=(UserRemoved(user="", at_s=0.0),)))
    with pytest.raises(MisplacedFact, match=r"user.removed.v1 on penstock.evt.user.jane"):
        decode_at("penstock.evt.user.jane", body)


@pytest.mark.parametrize("number", [2**64, -(10**30), 10**400])
def test_a_whole_number_that_no_snapshot_could_hold_is_no_fact(number: int) -> None:
    fact = b'{"type":"run.checkpointed.v1","at_s":1,"job_id":"j","epoch":1,"node_id":"n","step":%d}'
    body = b'{"id":"c","actor":"a","facts":[' + fact + b"]}"
    subject = subjects.entity("run", "j")
    assert decode_at(subject, body % (2**63 - 1)).facts
    with pytest.raises(CodecError, match=r"more than 64 bits|not a commit of known facts"):
        decode_at(subject, body % number)
