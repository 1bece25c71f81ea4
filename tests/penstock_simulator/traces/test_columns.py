"""Our own form, compression, and writing: what goes out comes back."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_simulator import traces
from penstock_simulator.trace import STATES, Trace
from penstock_simulator.traces import TraceError, plain_formats
from sweeps import examples

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8)
TIMES = st.floats(0, 1e9, allow_subnormal=False)
LENGTHS = st.floats(1e-3, 1e9)
JOBS = st.tuples(
    NAMES,
    TIMES,
    st.integers(1, 2**20),
    LENGTHS,
    st.floats(0.001, 1),
    st.integers(0, 2**30),
    *[st.one_of(st.just(""), NAMES)] * 4,
    st.sampled_from(["", *STATES]),
)


@st.composite
def any_trace(draw: st.DrawFn) -> Trace:
    jobs = sorted(draw(st.lists(JOBS, max_size=6)), key=lambda job: job[1])
    columns = list(zip(*jobs, strict=True)) if jobs else [()] * 11
    ids, submit_s, gpus, duration_s, shares, batches, *texts = columns
    given_share = draw(st.booleans()) and any(share < 1 for share in shares)
    given_batch = draw(st.booleans()) and any(batches)
    vcs, users, models, kinds, states = ([*cells] if any(cells) and draw(st.booleans()) else () for cells in texts)
    return Trace(
        name=draw(NAMES),
        job_ids=list(ids),
        submit_s=np.array(submit_s, np.float64),
        num_gpus=np.array(gpus, np.int64),
        duration_s=np.array(duration_s, np.float64),
        gpu_share=np.array(shares, np.float64) if given_share else None,
        batch_sizes=np.array(batches, np.int64) if given_batch else None,
        vcs=vcs,
        users=users,
        models=models,
        kinds=kinds,
        states=states,
        dropped=draw(st.dictionaries(NAMES, st.integers(1, 9), max_size=2)),
    )


def same(one: Trace, other: Trace) -> bool:
    def key(trace: Trace) -> tuple[object, ...]:
        numbers = (trace.submit_s, trace.num_gpus, trace.duration_s)
        share = None if trace.gpu_share is None else trace.gpu_share.tolist()
        batch = None if trace.batch_sizes is None else trace.batch_sizes.tolist()
        texts = (trace.job_ids, trace.vcs, trace.users, trace.models, trace.kinds, trace.states)
        return (trace.name, *(a.tolist() for a in numbers), share, batch, *map(list, texts), dict(trace.dropped))

    return key(one) == key(other)


@given(trace=any_trace(), suffix=st.sampled_from(["", ".gz", ".xz", ".bz2"]))
@settings(max_examples=examples(40), deadline=None)
def test_our_own_form_and_back_is_the_identity(tmp_path_factory, trace: Trace, suffix: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"own.jsonl{suffix}"
    traces.write(trace, path)
    assert same(traces.read(path), trace)


@given(trace=any_trace())
@settings(max_examples=examples(40), deadline=None)
def test_the_plain_form_and_back_keeps_every_job(tmp_path_factory, trace: Trace) -> None:
    path = tmp_path_factory.getbasetemp() / "plain.csv"
    traces.write(trace, path)
    back = traces.read(path, "csv")
    assert same(back, replace(trace, name="plain", dropped={}))


@pytest.fixture
def three() -> Trace:
    return Trace(
        name="three",
        job_ids=["a", "b", "c"],
        submit_s=np.array([0.0, 1.5, 2.0]),
        num_gpus=np.array([1, 2, 4]),
        duration_s=np.array([10.0, 20.0, 30.25]),
        models=["x", "", "y"],
        dropped={"zero GPUs": 2},
    )


def test_our_own_form_reads_like_this(tmp_path: Path, three: Trace) -> None:
    traces.write(three, tmp_path / "t.jsonl")
    assert (tmp_path / "t.jsonl").read_text() == (
        '{"penstock_trace":1,"name":"three","dropped":{"zero GPUs":2}}\n'
        '{"id":"a","submit_s":0.0,"num_gpus":1,"duration_s":10.0,"model":"x"}\n'
        '{"id":"b","submit_s":1.5,"num_gpus":2,"duration_s":20.0}\n'
        '{"id":"c","submit_s":2.0,"num_gpus":4,"duration_s":30.25,"model":"y"}\n'
    )


def test_the_plain_and_the_tiresias_form_read_like_this(tmp_path: Path, three: Trace) -> None:
    traces.write(three, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text().splitlines()[:3] == [
        "job_id,submit_s,num_gpus,duration_s,model",
        "a,0,1,10,x",
        "b,1.5,2,20,",
    ]
    traces.write(three, tmp_path / "tiresias.csv", "tiresias")
    assert (tmp_path / "tiresias.csv").read_text().splitlines()[1] == "a,1,0,0,x,10,0"
    assert len(traces.read(tmp_path / "tiresias.csv")) == 3


def test_the_same_trace_gives_the_same_bytes_when_compressed(tmp_path: Path, three: Trace) -> None:
    for name in ("one.jsonl.gz", "other.jsonl.gz"):
        traces.write(three, tmp_path / name)
    one = (tmp_path / "one.jsonl.gz").read_bytes()
    assert one == (tmp_path / "other.jsonl.gz").read_bytes()
    assert one[4:8] == bytes(4)  # no time in it: tomorrow's bytes are the same


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, bytes])
def test_compression_is_seen_by_content_whatever_the_name(tmp_path: Path, pack) -> None:
    (tmp_path / "named.so").write_bytes(pack(b"job_id,submit_s,num_gpus,duration_s\na,0,1,5\n"))
    assert len(traces.read(tmp_path / "named.so")) == 1


def test_a_damaged_archive_is_told_as_such(tmp_path: Path) -> None:
    whole = gzip.compress(b"job_id,submit_s,num_gpus,duration_s\n" + b"a,0,1,5\n" * 9000)
    (tmp_path / "t.gz").write_bytes(whole[:-20])
    with pytest.raises(TraceError, match="is damaged"):
        traces.read(tmp_path / "t.gz")


def test_zstandard_says_what_to_do_where_no_library_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression.zstd", None)
    (tmp_path / "t.zst").write_bytes(b"\x28\xb5\x2f\xfd rest")
    with pytest.raises(TraceError, match="run `zstd -d` on it first"):
        traces.read(tmp_path / "t.zst")


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no file"):
        traces.read(tmp_path / "nope.csv")
    with pytest.raises(TraceError, match="is a folder"):
        traces.read(tmp_path)


def test_another_version_of_our_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"penstock_trace": 2}\n')
    with pytest.raises(TraceError, match="has version 2 of the form; this Penstock reads 1"):
        traces.read(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ('{"id":"b","submit_s":0,"num_gpus":0,"duration_s":1}', "num_gpus"),
        ('{"id":"b","submit_s":0,"num_gpus":1,"duration_s":0}', "duration_s"),
        ('{"id":"b","num_gpus":1,"duration_s":1}', "submit_s"),
        ("{", "truncated"),
    ],
)
def test_a_broken_line_of_our_form_names_its_line(tmp_path: Path, line: str, wrong: str) -> None:
    job = '{"id":"a","submit_s":0,"num_gpus":1,"duration_s":1}'
    path = tmp_path / "t.jsonl"
    path.write_text(f'{{"penstock_trace": 1}}\n{job}\n\n{line}\n{job}\n')
    with pytest.raises(TraceError, match=rf"t\.jsonl:4: .*{wrong}.*; expected a job"):
        traces.read(path)
    trace = traces.read(path, lenient=True)
    assert (len(trace), trace.dropped) == (2, {"broken row": 1})


def test_the_line_is_right_behind_many_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_formats, "_LINES", 2)
    job = '{"id":"a","submit_s":0,"num_gpus":1,"duration_s":1}\n'
    (tmp_path / "t.jsonl").write_text('{"penstock_trace": 1}\n' + job * 5 + "{}\n")
    with pytest.raises(TraceError, match=r"t\.jsonl:7: "):
        traces.read(tmp_path / "t.jsonl")


def test_an_unknown_form_to_write_lists_the_forms(tmp_path: Path, three: Trace) -> None:
    with pytest.raises(TraceError, match="'gavel' is no form to write traces in; expected auto, penstock, csv"):
        traces.write(three, tmp_path / "t", "gavel")
