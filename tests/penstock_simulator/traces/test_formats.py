"""Formats of which no file is here: rows of our own in the published form; and what broken rows are told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from penstock_simulator import traces
from penstock_simulator.trace import Trace
from penstock_simulator.traces import TraceError, formats, philly, plain_formats
from penstock_simulator.traces.columns import TraceSource

HELIOS = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
11,uA,vc1,1,1,1,COMPLETED,2020-06-09 08:00:01,2020-06-09 08:00:01,2020-06-09 08:10:01,600,0
12,uB,vc1,4,16,1,FAILED,2020-06-09 08:00:02,2020-06-09 08:00:02,2020-06-09 08:01:02,60,0
13,uB,vc2,0,16,1,COMPLETED,2020-06-09 08:00:03,2020-06-09 08:00:03,2020-06-09 08:01:03,60,0
14,uC,vc2,8,16,1,CANCELLED,2020-06-09 08:00:04,,2020-06-09 08:01:04,0,60
"""
SACCT = """\
JobID|User|Account|State|Submit|Start|End|Elapsed|AllocTRES
7|ann|nlp|COMPLETED|2026-01-01T00:00:00|2026-01-01T00:01:00|2026-01-02T01:01:00|1-01:00:00|gres/gpu:a100=4,gres/gpu=4
7.batch||nlp|COMPLETED|2026-01-01T00:01:00|2026-01-01T00:01:00|2026-01-02T01:01:00|1-01:00:00|cpu=8
8_3|bob|nlp|CANCELLED by 7|2026-01-01T00:00:10|2026-01-01T00:01:00|2026-01-01T00:01:30|00:30|gres/gpu:t4=1,gres/gpu:l4=2
9|bob|cv|COMPLETED|2026-01-01T00:00:11|2026-01-01T00:01:00|2026-01-01T00:01:30|00:30|cpu=8
10|bob|cv|RUNNING|2026-01-01T00:00:12|2026-01-01T00:01:00|Unknown|05:00|gres/gpu=1
11_[4-9]|bob|cv|PENDING|2026-01-01T00:00:13|Unknown|Unknown|00:00:00|
12|eve|cv|TIMEOUT|2026-01-01T00:00:14|2026-01-01T00:01:00|2026-01-01T00:01:30|00:00:30|gres/gpu=2
"""
TASKS = """\
j1,tensorflow,1.0,Terminated,100.0,160.0,600.0,29.2,50.0,T4
j2,ps,1.0,Terminated,200.0,300.0,600.0,29.2,,
j2,worker,4.0,Terminated,210.0,300.0,600.0,29.2,50.0,V100
j2,chief,1.0,Terminated,205.0,290.0,600.0,29.2,100.0,V100
j3,worker,2.0,Failed,150.0,180.0,600.0,29.2,100.0,MISC
j4,worker,1.0,Running,150.0,,600.0,29.2,100.0,P100
"""
PHILLY = [
    {
        "status": "Pass",
        "vc": "v1",
        "jobid": "a1",
        "attempts": [
            {
                "start_time": "2017-10-07 01:00:00",
                "end_time": "2017-10-07 01:01:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0"]}],
            },
            {"start_time": "2017-10-07 02:00:00", "end_time": None, "detail": []},
            {"start_time": "2017-11-05 00:30:00", "end_time": "2017-11-05 02:30:00", "detail": []},
        ],
        "submitted_time": "2017-10-07 00:59:00",
        "user": "u1",
    },
    {"status": "Failed", "vc": "v1", "jobid": "a2", "attempts": [], "submitted_time": "2017-10-07 00:58:00"},
    {
        "status": "Killed",
        "vc": "v2",
        "jobid": "a3",
        "attempts": [{"start_time": "2017-10-07 01:00:00", "end_time": None, "detail": [{"ip": "m1", "gpus": ["g"]}]}],
        "submitted_time": "2017-10-07 00:57:00",
        "user": "u2",
    },
    {
        "status": "Killed",
        "vc": "v2",
        "jobid": "a4",
        "attempts": [{"start_time": "2017-10-07 01:00:00", "end_time": "2017-10-07 01:00:30", "detail": []}],
        "submitted_time": "2017-10-07 00:56:00",
        "user": "u2",
    },
]


@pytest.fixture
def file(tmp_path: Path):
    def write(text: str, name: str = "t.csv") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def rows(trace: Trace) -> list[tuple[str, float, int, float]]:
    columns = (trace.submit_s.tolist(), trace.num_gpus.tolist(), trace.duration_s.tolist())
    return list(zip(trace.job_ids, *columns, strict=True))


def test_helios_as_published_has_dates_in_china(file) -> None:
    trace = traces.read(file(HELIOS))
    midnight = float(np.datetime64("2020-06-09T00:00:00", "s").astype(int))
    assert rows(trace) == [("11", midnight + 1, 1, 600.0), ("12", midnight + 2, 4, 60.0)]
    assert trace.dropped == {"zero GPUs": 1, "zero length": 1}
    assert trace.states == ["completed", "failed"]


def test_sacct_counts_allocated_devices_and_passes_over_steps(file) -> None:
    trace = traces.read(file(SACCT))
    start = float(np.datetime64("2026-01-01T00:00:00", "s").astype(int))
    assert rows(trace) == [("7", start, 4, 90_000.0), ("8_3", start + 10, 3, 30.0), ("12", start + 14, 2, 30.0)]
    assert trace.dropped == {"job step": 1, "zero GPUs": 2, "no end time": 1}
    assert (trace.vcs, trace.users) == (["nlp", "nlp", "cv"], ["ann", "bob", "eve"])
    assert (trace.kinds, trace.states) == (["a100", "t4|l4", ""], ["completed", "cancelled", "failed"])


def test_sacct_without_elapsed_takes_end_less_start(file) -> None:
    text = "JobID|AllocTRES|Submit|Start|End|State\n1|gres/gpu=1|0|10|25|COMPLETED\n"
    assert rows(traces.read(file(text))) == [("1", 0.0, 1, 15.0)]


def test_sacct_names_the_line_of_a_span_that_is_none(file) -> None:
    path = file(SACCT.replace("00:00:30|gres/gpu=2", "soon|gres/gpu=2"))
    with pytest.raises(TraceError, match=r"t\.csv:8: Elapsed is 'soon'; expected a span such as .*--lenient"):
        traces.read(path)
    assert traces.read(path, lenient=True).dropped["broken row"] == 1


def test_the_jobs_of_alibaba_2020_are_put_together_from_their_tasks(file) -> None:
    trace = traces.read(file(TASKS))
    assert rows(trace) == [("j1", 100.0, 1, 60.0), ("j3", 150.0, 2, 30.0), ("j2", 205.0, 3, 95.0)]
    assert trace.gpu_share is not None
    assert trace.gpu_share.tolist() == [0.5, 1.0, 1.0]
    assert trace.dropped == {"zero GPUs": 1, "no end time": 1}
    assert (trace.kinds, trace.states) == (["T4", "", "V100"], ["completed", "failed", "completed"])


def test_the_table_of_jobs_tells_when_those_of_alibaba_2020_were_submitted_and_by_whom(file) -> None:
    jobs = file("j1,i1,ann,Terminated,90.0,160.0\nj2,i2,bob,Terminated,80.0,300.0\n", "jobs.csv")
    trace = traces.read(file(TASKS), beside=jobs)
    assert rows(trace)[:2] == [("j2", 80.0, 3, 95.0), ("j1", 90.0, 1, 60.0)]
    assert trace.users == ["bob", "ann", ""]


def test_the_table_of_instances_tells_when_the_jobs_of_alibaba_2020_really_ran(file) -> None:
    head = "job_name,task_name,inst_name,worker_name,inst_id,status,start_time,end_time,machine\n"
    instances = file(
        head + "j1,tensorflow,n,w,i1,Terminated,110.0,150.0,m\nj1,tensorflow,n,w,i1,Running,10.0,,m\n", "i.csv"
    )
    assert rows(traces.read(file(TASKS), beside=instances))[0] == ("j1", 110.0, 1, 40.0)


def test_a_second_table_that_is_neither_is_refused(file) -> None:
    with pytest.raises(TraceError, match=r"has 2 columns; expected pai_job_table \(6\) or pai_instance_table \(9\)"):
        traces.read(file(TASKS), beside=file("a,b\n", "x.csv"))


def test_the_length_of_a_job_of_philly_is_the_sum_of_its_attempts(file) -> None:
    trace = traces.read(file(json.dumps(PHILLY, indent=1), "cluster_job_log"))
    submit_s = float(np.datetime64("2017-10-07T07:59:00", "s").astype(int))
    assert rows(trace) == [("a1", submit_s, 3, 60.0 + 3 * 3600.0)]  # the clocks went back between 00:30 and 02:30
    assert trace.dropped == {"no attempt": 1, "zero GPUs": 1, "no end time": 1}
    assert (trace.vcs, trace.users, trace.states) == (["v1"], ["u1"], ["completed"])


def test_a_broken_entry_of_philly_names_the_line_where_it_begins(file) -> None:
    lines = ["[", *(json.dumps(job) + "," for job in PHILLY[:2]), '{"jobid": 3, "attempts": []}', "]"]
    path = file("\n".join(lines), "log.json")
    with pytest.raises(TraceError, match=r"log\.json:4: the entry begins here: .*`str`.* expected an entry"):
        traces.read(path)
    assert traces.read(path, lenient=True).dropped == {"broken row": 1, "no attempt": 1}


def test_what_is_no_json_names_the_line(file) -> None:
    with pytest.raises(TraceError, match=r"t\.csv:3: no JSON list"):
        traces.read(file('[\n{"a": 1},\n{"a" 2}]'))


def test_gavel_without_throughputs_says_what_to_give(file) -> None:
    with pytest.raises(TraceError, match=r"counts steps, not seconds; .*simulation_throughputs\.json \(--with FILE of"):
        traces.read(file("m\tcmd\t-n\t1\t100\t0.0\t1\n"))


def test_gavel_reads_both_widths(file) -> None:
    speeds = file(json.dumps({"v100": {"('m', 1)": {"null": 2.0}, "('m', 4)": {"null": 5.0}}}), "s.json")
    old = file("m\tcmd\t-n\t1\t100\t0.5\t1\nm\tcmd\t-n\t1\t100\t3.5\t2\n", "old.trace")
    new = file("m\tcmd\td\t-n\t1\t100\t4\t1\t-1.000000\t7\n", "new.trace")
    assert rows(traces.read(old, beside=speeds)) == [("0", 0.5, 1, 50.0)]
    assert traces.read(old, beside=speeds).dropped == {"no measured speed": 1}
    assert rows(traces.read(new, beside=speeds)) == [("0", 7.0, 4, 20.0)]


def test_gavel_knows_the_kinds_that_were_measured(file) -> None:
    speeds = file(json.dumps({"v100": {"('m', 1)": {"null": 2.0}}}), "kinds.json")
    with pytest.raises(TraceError, match=r"knows no device kind 'h100'; expected one of v100"):
        plain_formats.throughputs(speeds, "h100")
    with pytest.raises(TraceError, match=r"holds no throughputs"):
        plain_formats.throughputs(file("[1]", "list.json"), "v100")


def test_rows_of_zero_devices_or_without_length_are_counted(file) -> None:
    text = "job_id,submit_s,num_gpus,duration_s\na,0,1,5\nb,1,0,5\nc,2,1,-5\nd,3,2,0\ne,-4,2,1\n"
    trace = traces.read(file(text))
    assert rows(trace) == [("e", -4.0, 2, 1.0), ("a", 0.0, 1, 5.0)]
    assert trace.dropped == {"zero GPUs": 1, "negative length": 1, "zero length": 1}


def test_jobs_of_one_time_keep_the_order_of_the_file(file) -> None:
    body = "".join(f"{i},{(i + 1) % 2},1,5\n" for i in range(400))
    ids = [int(job_id) for job_id in traces.read(file("job_id,submit_s,num_gpus,duration_s\n" + body)).job_ids]
    assert ids == [*range(1, 400, 2), *range(0, 400, 2)]


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("b,1,two,5", r"num_gpus is 'two'; expected a number"),
        ("b,1,1.5,5", r"num_gpus is '1\.5'; expected a whole number"),
        ("b,nan,1,5", r"submit_s is 'nan'; expected a number"),
        ("b,1,1,", r"duration_s is ''; expected a number"),
        ("b,1,1", r"the row has 3 fields; expected 4: job_id, submit_s, num_gpus, duration_s"),
        ("b,1,1,5,6", r"the row has 5 fields"),
    ],
)
def test_a_broken_row_names_its_line_what_was_wrong_and_what_was_expected(file, row: str, wrong: str) -> None:
    text = f"# a comment\n# another\njob_id,submit_s,num_gpus,duration_s\n\na,0,1,5\n{row}\nc,2,1,5\n"
    path = file(text)
    with pytest.raises(TraceError, match=rf"t\.csv:6: {wrong}"):
        traces.read(path)
    trace = traces.read(path, lenient=True)
    assert (trace.job_ids, trace.dropped) == (["a", "c"], {"broken row": 1})


def test_the_line_is_right_behind_rows_of_several_lines_and_many_blocks(file) -> None:
    body = "".join(f"{i},{i},1,5\n" for i in range(5000))
    path = file('job_id,submit_s,num_gpus,duration_s\n"x\ny",0,1,5\n' + body + "z,0,1,?\n")
    with pytest.raises(TraceError, match=r"t\.csv:5004: duration_s is '\?'"):
        traces.read(path)


def test_a_share_of_a_device_is_above_0_and_at_most_1(file) -> None:
    text = "job_id,submit_s,num_gpus,duration_s,gpu_share\na,0,1,5,0.25\nb,0,1,5,\n"
    trace = traces.read(file(text))
    assert trace.gpu_share is not None
    assert trace.gpu_share.tolist() == [0.25, 1.0]
    with pytest.raises(TraceError, match=r":2: gpu_share is '2'; expected above 0 and at most 1"):
        traces.read(file(text.replace("0.25", "2")))


def test_a_batch_size_may_be_left_out_and_is_a_whole_number_from_0(file) -> None:
    text = "job_id,submit_s,num_gpus,duration_s,batch_size\na,0,1,5,128\nb,0,1,5,\n"
    trace = traces.read(file(text))
    assert trace.batch_sizes is not None
    assert trace.batch_sizes.tolist() == [128, 0]
    for wrong, expected in (("-1", "at least 0"), ("1.5", "a whole number")):
        with pytest.raises(TraceError, match=f":2: batch_size is '{wrong}'; expected {expected}"):
            traces.read(file(text.replace("128", wrong)))


def test_a_missing_column_is_named(file) -> None:
    with pytest.raises(TraceError, match=r"no column num_gpus; found job_id, submit_s, duration_s"):
        traces.read(file("job_id,submit_s,duration_s\na,0,5\n"), "csv")


def test_a_file_in_no_known_format_lists_the_formats(file) -> None:
    with pytest.raises(TraceError, match=r"in no format that is known here; name one of penstock, log, csv, tiresias"):
        traces.read(file("hello\n"))
    with pytest.raises(TraceError, match=r"'pbs' is no format of traces; expected auto, penstock"):
        traces.read(file("hello\n"), "pbs")


@pytest.mark.parametrize(("text", "name"), [(HELIOS, "helios"), (SACCT, "sacct"), (TASKS, "alibaba-2020")])
def test_formats_are_told_by_their_content(file, text: str, name: str) -> None:
    assert formats.detect(TraceSource(file(text))) == name


def test_an_empty_file_is_no_trace(file) -> None:
    with pytest.raises(TraceError, match="is empty; expected rows of jobs"):
        traces.read(file(""))


def test_a_header_without_rows_is_a_trace_without_jobs(file) -> None:
    assert len(traces.read(file("job_id,submit_s,num_gpus,duration_s\n"))) == 0


def test_the_hour_that_is_there_twice_is_taken_for_the_first() -> None:
    times = ["2017-11-05 00:59:59", "2017-11-05 01:30:00", "2017-11-05 02:00:00"]
    assert np.diff(philly.epoch_s(times)).tolist() == [1801.0, 1800.0 + 3600.0]
    assert np.isnan(philly.epoch_s(["2017-11-05 01:30:00", ""])).tolist() == [False, True]
