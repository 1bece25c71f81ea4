"""Facts that this version does not know: kept, shown, and ignored by every fold."""

from __future__ import annotations

import msgspec
import pytest
from fact_factories import submitted
from hypothesis import given
from hypothesis import strategies as st

from penstock_bus import Delivery
from penstock_bus.decider import Fold
from penstock_gateway.machine import announcer
from penstock_log import (
    CodecError,
    Commit,
    Event,
    JobTable,
    MisplacedFact,
    UnknownFact,
    decode,
    decode_at,
    encode,
    fields_of,
    read_as,
    subjects,
    tag_of,
)

NAMES = st.from_regex(r"\A[a-z0-9_]{1,9}\Z")
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
BILLING = subjects.extension("billing", "j1")


def body(*facts: object) -> bytes:
    return msgspec.json.encode({"id": "c", "actor": "billing/1", "facts": facts, "cause": 7})


def priced(cents: int = 5, **more: object) -> dict[str, object]:
    return {"type": "ext.billing.priced.v1", "at_s": 2.0, "cents": cents, **more}


class Priced(Event, frozen=True, kw_only=True, tag="ext.billing.priced.v1"):
    """What an extension says."""

    cents: int


@given(st.lists(st.tuples(NAMES, st.dictionaries(st.text(), JSON, max_size=4)), min_size=1, max_size=4), st.randoms())
def test_unknown_facts_come_back_as_they_were_beside_known_ones(found, random) -> None:
    known = msgspec.to_builtins(submitted())
    raw = [*({**fields, "type": f"ext.billing.{name}.v1"} for name, fields in found), known]
    random.shuffle(raw)
    commit = decode(body(*raw))
    assert [fields_of(fact) for fact in commit.facts] == raw
    assert commit.known == (submitted(),)
    assert msgspec.json.decode(encode(commit)) == msgspec.json.decode(body(*raw))
    assert decode(encode(commit)) == commit


def test_its_tag_and_its_time_are_at_hand() -> None:
    timed, untimed, odd = decode(body(priced(), {"type": "ext.a.b"}, {"type": "ext.a.b", "at_s": "soon"})).facts
    assert [(tag_of(fact), fact.at_s) for fact in (timed, untimed, odd)] == [
        ("ext.billing.priced.v1", 2.0),
        ("ext.a.b", 0.0),
        ("ext.a.b", 0.0),
    ]


@pytest.mark.parametrize("tag", ["run.ended.v9", "run.ended.v0", "run.ended", "node.joined.v3", "job.submitted.v1.x"])
def test_another_version_of_a_known_fact_is_refused(tag: str) -> None:
    with pytest.raises(CodecError, match=tag):
        decode(body({"type": tag, "at_s": 1.0, "job_id": "j1"}))


@pytest.mark.parametrize("fact", [{}, {"at_s": 1.0}, {"type": 5}, {"type": ""}, {"type": "priced"}, 5, None, ["x"]])
def test_what_has_no_tag_is_refused(fact: object) -> None:
    with pytest.raises(CodecError):
        decode(body(fact))
    with pytest.raises(CodecError):
        decode_at(BILLING, body(priced(), fact))


@pytest.mark.parametrize(
    ("subject", "fact"),
    [
        (BILLING, {"type": "ext.audit.priced.v1"}),
        (BILLING, {"type": "ext.billing"}),
        (BILLING, {"type": "ext.billingx.priced.v1"}),
        (BILLING, {"type": "job.coloured.v1", "job_id": "j1"}),
        (BILLING, msgspec.to_builtins(submitted())),
        (f"{BILLING}.more", {"type": "ext.billing.priced.v1"}),
        ("penstock.evt.ext.billing", {"type": "ext.billing.priced.v1"}),
        (subjects.job("j1"), {"type": "ext.billing.priced.v1"}),
        (subjects.job("j1"), {"type": "run.coloured.v1", "job_id": "j1"}),
        (subjects.job("j1"), {"type": "job.coloured.v1", "job_id": "j2"}),
    ],
)
def test_a_fact_out_of_place_is_refused_whether_known_or_not(subject: str, fact: dict[str, object]) -> None:
    with pytest.raises(MisplacedFact):
        decode_at(subject, body(fact))


@pytest.mark.parametrize(
    ("subject", "fact"),
    [
        (BILLING, priced()),
        (subjects.job("j1"), {"type": "job.coloured.v1", "job_id": "j1"}),
        (subjects.job("j1"), {"type": "job.coloured.v1"}),
        ("penstock.evt.team.t1", {"type": "team.founded.v1"}),
    ],
)
def test_a_fact_in_its_place_is_kept(subject: str, fact: dict[str, object]) -> None:
    assert [fields_of(found) for found in decode_at(subject, body(fact)).facts] == [fact]


def test_a_number_that_no_snapshot_could_hold_is_refused_in_unknown_facts_too() -> None:
    with pytest.raises(CodecError, match=r"cents.* more than 64 bits"):
        decode_at(BILLING, body().replace(b"[]", b'[{"type":"ext.billing.priced.v1","cents":%d}]' % 10**25))


def test_no_bytes_decode_as_the_type_of_unknown_facts_itself() -> None:
    for tag in ("", "ext.billing.priced.v1"):
        with pytest.raises(CodecError):
            decode(body({"type": "UnknownFact", "at_s": 1.0, "tag": tag, "raw": {}}))


def test_an_extension_reads_its_own() -> None:
    (fact,) = decode(body(priced())).facts
    assert isinstance(fact, UnknownFact)
    assert read_as(fact, Priced) == Priced(at_s=2.0, cents=5)
    assert read_as(UnknownFact(tag="x.y", at_s=0.0, raw={"type": "x.y"}), Priced) is None
    assert encode(Commit(id="c", actor="billing/1", facts=(Priced(at_s=2.0, cents=5),), cause=7)) == body(priced())  # type: ignore[arg-type]


def test_a_fold_counts_commits_of_unknown_facts_and_holds_none_of_them() -> None:
    decider = announcer()
    with_, without = Fold(decider), Fold(decider)
    job = encode(Commit(id="c1", actor="gateway/1", facts=(submitted(job_id="j1"),)))
    mixed = body(msgspec.to_builtins(submitted(job_id="j1")), {"type": "job.coloured.v1", "job_id": "j1"})
    for fold, of_job in ((with_, mixed), (without, job)):
        fold.apply(_delivery(1, subjects.job("j1"), of_job))
    with_.apply(_delivery(2, BILLING, body(priced())))
    assert (with_.last_seq, with_.heads) == (2, {subjects.job("j1"): 1})
    assert with_.encoded() == without.encoded()
    assert not decider.heeds(decode(body(priced())))
    again = Fold(decider)
    assert again.restore(with_.snapshot())
    assert again.last_seq == 2


def test_a_hundred_thousand_unknown_facts_leave_a_table_of_jobs_as_it_was() -> None:
    table = JobTable()
    commit = decode_at(BILLING, body(*(priced(cents) for cents in range(100_000))))
    assert [fact.raw["cents"] for fact in commit.facts if isinstance(fact, UnknownFact)] == list(range(100_000))
    assert commit.known == ()
    for fact in commit.facts:
        table.apply(fact)
    assert not list(table)


def _delivery(seq: int, subject: str, message: bytes) -> Delivery:
    return Delivery(seq=seq, subject=subject, stored_s=float(seq), pending=0, commit=decode_at(subject, message))
