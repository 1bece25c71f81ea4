"""Every published file, or the part of it that is here: as many jobs, devices and seconds as zcat and awk count."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from published import REFERENCE, TRACES, large_trace

from penstock_simulator import traces
from penstock_simulator.trace import Trace
from penstock_simulator.traces import TraceError


def totals(trace: Trace) -> tuple[int, int, int]:
    assert (np.diff(trace.submit_s) >= 0).all()
    assert len(set(trace.job_ids)) == len(trace)
    return len(trace), int(trace.num_gpus.sum()), round(float(trace.duration_s.sum()))


@pytest.mark.slow
def test_philly_of_twelve_virtual_clusters() -> None:
    trace = traces.read(large_trace("philly_12vc_109532.csv.gz"))
    assert totals(trace) == (109_532, 183_836, 3_177_440_069)
    assert (len(set(trace.vcs)), int(trace.num_gpus.max()), trace.dropped) == (12, 48, {})
    assert (trace.name, trace.job_ids[0], trace.submit_s[0]) == ("philly_12vc_109532", "6214e9-0", 689220.0)


def test_philly_of_twelve_virtual_clusters_in_part() -> None:
    trace = traces.read(TRACES / "philly_12vc_sample.csv.gz")
    assert totals(trace) == (196, 523, 13_319_768)
    assert (len(set(trace.vcs)), int(trace.num_gpus.max()), trace.dropped) == (11, 32, {})


def test_philly_as_published_with_sia_in_part() -> None:
    trace = traces.read(TRACES / "philly_sia_sample.csv.gz")
    assert totals(trace) == (196, 523, 13_319_768)
    assert float(trace.submit_s[0]) == np.datetime64("2017-09-04T17:30:41").astype(int)  # 10:30:41 in summer, UTC - 7
    assert float(trace.submit_s[-1]) == np.datetime64("2017-12-22T14:22:28").astype(int)  # 06:22:28 in winter, UTC - 8


def test_philly_as_published_with_sia() -> None:
    trace = traces.read(large_trace("philly_sia_82247.orig.csv.gz"))
    assert totals(trace) == (82_247, 107_235, 1_080_390_950)
    assert len(set(trace.vcs)) == 15
    assert float(trace.submit_s[0]) == np.datetime64("2017-09-04T17:30:41").astype(int)  # 10:30:41 in summer, UTC - 7
    assert float(trace.submit_s[-1]) == np.datetime64("2017-12-22T16:02:11").astype(int)  # 08:02:11 in winter, UTC - 8


def test_both_forms_of_philly_agree_on_the_clock_over_the_end_of_summer_time() -> None:
    sia = traces.read(TRACES / "philly_sia_sample.csv.gz")
    plain = traces.read(TRACES / "philly_12vc_sample.csv.gz")
    assert len(gaps_s(sia, plain)) == 1


@pytest.mark.slow
def test_both_forms_of_all_of_philly_agree_on_the_clock() -> None:
    sia = traces.read(large_trace("philly_sia_82247.orig.csv.gz"))
    plain = traces.read(large_trace("philly_12vc_109532.csv.gz"))
    assert len(gaps_s(sia, plain)) == 1


def gaps_s(*forms: Trace) -> set[float]:
    """Return how far apart the forms say that a job came, for jobs that each of them has once."""
    where: list[dict[tuple[str, int, float], float]] = []
    for trace in forms:
        keys = list(zip(trace.vcs, trace.num_gpus.tolist(), trace.duration_s.tolist(), strict=True))
        count = Counter(keys)
        where.append({key: at for key, at in zip(keys, trace.submit_s.tolist(), strict=True) if count[key] == 1})
    one, other = where
    return {one[key] - other[key] for key in one.keys() & other.keys()}


def test_helios() -> None:
    trace = traces.read(TRACES / "helios_venus_2vc_sept_1867.orig.csv.gz")
    assert totals(trace) == (1867, 87_757, 10_549_988)
    assert (trace.submit_s[0], trace.submit_s[-1]) == (5835.0, 2_222_263.0)
    assert Counter(trace.vcs) == {"vcvGl": 1452, "vcvlY": 415}
    assert Counter(trace.states) == {"completed": 786, "cancelled": 589, "failed": 491 + 1}
    assert len(set(trace.users)) == 12


def test_one_pod_in_ten_of_openb() -> None:
    trace = traces.read(TRACES / "openb_pods_1_of_10.csv.gz")
    assert totals(trace) == (618, 660, 23_581_911)
    assert trace.dropped == {"zero GPUs": 97, "never scheduled": 101}
    assert trace.gpu_share is not None
    assert int((trace.gpu_share < 1).sum()) == 260
    assert float((trace.gpu_share * trace.num_gpus).sum()) == pytest.approx(546.89)
    assert Counter(trace.states) == {"running": 400, "failed": 197, "completed": 21}


def test_openb() -> None:
    trace = traces.read(large_trace("openb_pod_list_default.orig.csv.gz"))
    assert totals(trace) == (6203, 6571, 191_369_677)
    assert trace.dropped == {"zero GPUs": 1088, "never scheduled": 861}
    assert trace.gpu_share is not None
    assert int((trace.gpu_share < 1).sum()) == 2573
    assert float((trace.gpu_share * trace.num_gpus).sum()) == pytest.approx(5484.93)
    assert Counter(trace.states) == {"running": 4149, "failed": 1869, "completed": 185}


def test_the_machines_of_openb() -> None:
    nodes = traces.read_nodes(TRACES / "openb_node_list_gpu_node.orig.csv.gz")
    assert (nodes.sizes.size, nodes.gpus) == (1213, 6212)
    assert (nodes.of_kind("G2"), nodes.of_kind("T4"), nodes.of_kind("P100")) == (4392, 842, 265)


def test_the_machines_of_philly() -> None:
    nodes = traces.read_nodes(TRACES / "philly_machine_list.orig.csv.gz")
    assert (nodes.sizes.size, nodes.gpus) == (552, 2490)
    assert (nodes.of_kind("12gb"), nodes.of_kind("24gb")) == (321 * 2, 231 * 8)


def test_a_trace_is_no_list_of_machines() -> None:
    with pytest.raises(TraceError, match=r"no list of machines; expected the columns sn, gpu, model"):
        traces.read_nodes(REFERENCE / "tiresias" / "60_job.csv")


def test_gavel_with_ten_fields() -> None:
    speeds = REFERENCE / "gavel_throughputs.json"
    trace = traces.read(TRACES / "gavel_physical_max_min_fairness.orig.trace.gz", beside=speeds)
    assert (len(trace), int(trace.num_gpus.sum()), trace.dropped) == (96, 169, {})
    assert trace.submit_s[-1] == 46317.0
    assert trace.models[0] == "ResNet-18 (batch size 128)"
    assert trace.duration_s[0] == pytest.approx(925982 / 69.9505, rel=1e-4)  # steps over steps a second on four V100s


def test_gavel_with_seven_fields_drops_what_nobody_measured() -> None:
    speeds = REFERENCE / "gavel_throughputs.json"
    trace = traces.read(TRACES / "gavel_msr_seed0_ee9e8c.orig.trace.gz", beside=speeds)
    assert (len(trace), int(trace.num_gpus.sum())) == (1627, 5067)
    assert trace.dropped == {"no measured speed": 373}


def test_a_slower_kind_makes_the_jobs_of_gavel_longer() -> None:
    speeds = REFERENCE / "gavel_throughputs.json"
    path = TRACES / "gavel_physical_max_min_fairness.orig.trace.gz"
    fast, slow = (traces.read(path, beside=speeds, kind=kind) for kind in ("v100", "k80"))
    assert slow.duration_s.sum() > 2 * fast.duration_s.sum()


def test_tiresias() -> None:
    assert totals(traces.read(REFERENCE / "tiresias" / "60_job.csv")) == (60, 170, 10_705)
    trace = traces.read(REFERENCE / "tiresias" / "60_job_x10.csv")
    assert totals(trace) == (60, 170, 107_050)
    assert (trace.models[:3], trace.submit_s[2]) == (["vgg19", "vgg11", "inception4"], 530.0)


def test_columns_of_results_beside_the_plain_ones_are_passed_over() -> None:
    assert totals(traces.read(TRACES / "bench_S3000_golden_256gpu.csv.gz")) == (3000, 4171, 17_562_475)
