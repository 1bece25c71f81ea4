"""Every published file: as many jobs, devices and seconds as zcat and awk count."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from penstock_sim import traces
from penstock_sim.trace import Trace
from penstock_sim.traces import TraceError

SHARED = Path(__file__).parents[3] / "shared"


def published(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"no {path}: the published traces are not here")
    return path


def totals(trace: Trace) -> tuple[int, int, int]:
    assert (np.diff(trace.submit_s) >= 0).all()
    assert len(set(trace.job_ids)) == len(trace)
    return len(trace), int(trace.num_gpus.sum()), round(float(trace.duration_s.sum()))


def test_philly_of_twelve_virtual_clusters() -> None:
    trace = traces.read(published("traces/philly_12vc_109532.csv.gz"))
    assert totals(trace) == (109_532, 183_836, 3_177_440_069)
    assert (len(set(trace.vcs)), int(trace.num_gpus.max()), trace.dropped) == (12, 48, {})
    assert (trace.name, trace.job_ids[0], trace.submit_s[0]) == ("philly_12vc_109532", "6214e9-0", 689220.0)


def test_philly_as_published_with_sia() -> None:
    trace = traces.read(published("traces/philly_sia_82247.orig.csv.gz"))
    assert totals(trace) == (82_247, 107_235, 1_080_390_950)
    assert len(set(trace.vcs)) == 15
    assert float(trace.submit_s[0]) == np.datetime64("2017-09-04T17:30:41").astype(int)  # 10:30:41 in summer, UTC - 7
    assert float(trace.submit_s[-1]) == np.datetime64("2017-12-22T16:02:11").astype(int)  # 08:02:11 in winter, UTC - 8


def test_both_forms_of_philly_agree_on_the_clock_over_the_end_of_summer_time() -> None:
    sia = traces.read(published("traces/philly_sia_82247.orig.csv.gz"))
    plain = traces.read(published("traces/philly_12vc_109532.csv.gz"))
    where = [{}, {}]  # type: list[dict[tuple[str, int, float], float]]
    for found, trace in zip(where, (sia, plain), strict=True):
        keys = list(zip(trace.vcs, trace.num_gpus.tolist(), trace.duration_s.tolist(), strict=True))
        count = Counter(keys)
        found.update((key, at) for key, at in zip(keys, trace.submit_s.tolist(), strict=True) if count[key] == 1)
    gaps = {where[0][key] - where[1][key] for key in where[0].keys() & where[1].keys()}
    assert len(gaps) == 1


def test_helios() -> None:
    trace = traces.read(published("traces/helios_venus_2vc_sept_1867.orig.csv.gz"))
    assert totals(trace) == (1867, 87_757, 10_549_988)
    assert (trace.submit_s[0], trace.submit_s[-1]) == (5835.0, 2_222_263.0)
    assert Counter(trace.vcs) == {"vcvGl": 1452, "vcvlY": 415}
    assert Counter(trace.states) == {"completed": 786, "cancelled": 589, "failed": 491 + 1}
    assert len(set(trace.users)) == 12


def test_openb() -> None:
    trace = traces.read(published("traces/openb_pod_list_default.orig.csv.gz"))
    assert totals(trace) == (6203, 6571, 191_369_677)
    assert trace.dropped == {"zero GPUs": 1088, "never scheduled": 861}
    assert trace.gpu_share is not None
    assert int((trace.gpu_share < 1).sum()) == 2573
    assert float((trace.gpu_share * trace.num_gpus).sum()) == pytest.approx(5484.93)
    assert Counter(trace.states) == {"running": 4149, "failed": 1869, "completed": 185}


def test_the_machines_of_openb() -> None:
    nodes = traces.read_nodes(published("traces/openb_node_list_gpu_node.orig.csv.gz"))
    assert (nodes.sizes.size, nodes.gpus) == (1213, 6212)
    assert (nodes.of_kind("G2"), nodes.of_kind("T4"), nodes.of_kind("P100")) == (4392, 842, 265)


def test_the_machines_of_philly() -> None:
    nodes = traces.read_nodes(published("traces/philly_machine_list.orig.csv.gz"))
    assert (nodes.sizes.size, nodes.gpus) == (552, 2490)
    assert (nodes.of_kind("12gb"), nodes.of_kind("24gb")) == (321 * 2, 231 * 8)


def test_a_trace_is_no_list_of_machines() -> None:
    with pytest.raises(TraceError, match=r"no list of machines; expected the columns sn, gpu, model"):
        traces.read_nodes(published("reference/tiresias/60_job.csv"))


def test_gavel_with_ten_fields() -> None:
    speeds = published("reference/gavel_throughputs.json")
    trace = traces.read(published("traces/gavel_physical_max_min_fairness.orig.trace.gz"), beside=speeds)
    assert (len(trace), int(trace.num_gpus.sum()), trace.dropped) == (96, 169, {})
    assert trace.submit_s[-1] == 46317.0
    assert trace.models[0] == "ResNet-18 (batch size 128)"
    assert trace.duration_s[0] == pytest.approx(925982 / 69.9505, rel=1e-4)  # steps over steps a second on four V100s


def test_gavel_with_seven_fields_drops_what_nobody_measured() -> None:
    speeds = published("reference/gavel_throughputs.json")
    trace = traces.read(published("traces/gavel_msr_seed0_ee9e8c.orig.trace.gz"), beside=speeds)
    assert (len(trace), int(trace.num_gpus.sum())) == (1627, 5067)
    assert trace.dropped == {"no measured speed": 373}


def test_a_slower_kind_makes_the_jobs_of_gavel_longer() -> None:
    speeds = published("reference/gavel_throughputs.json")
    path = published("traces/gavel_physical_max_min_fairness.orig.trace.gz")
    fast, slow = (traces.read(path, beside=speeds, kind=kind) for kind in ("v100", "k80"))
    assert slow.duration_s.sum() > 2 * fast.duration_s.sum()


def test_tiresias() -> None:
    assert totals(traces.read(published("reference/tiresias/60_job.csv"))) == (60, 170, 10_705)
    trace = traces.read(published("reference/tiresias/60_job_x10.csv"))
    assert totals(trace) == (60, 170, 107_050)
    assert (trace.models[:3], trace.submit_s[2]) == (["vgg19", "vgg11", "inception4"], 530.0)


def test_columns_of_results_beside_the_plain_ones_are_passed_over() -> None:
    assert totals(traces.read(published("traces/bench_S3000_golden_256gpu.csv.gz"))) == (3000, 4171, 17_562_475)
