import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock_policies import fifo


def run(submit, gpus, run_s, devices):
    arrays = np.array(submit, dtype=float), np.array(gpus), np.array(run_s, dtype=float), np.array(devices)
    return tuple(a.tolist() for a in fifo.schedule(*arrays))


def test_nobody_overtakes_a_gang_that_waits():
    start, _ = run([0, 1, 2], [1, 2, 1], [[5.0]] * 3, [2])
    assert start == [0.0, 5.0, 10.0]


def test_a_job_takes_the_first_kind_that_is_free_however_slow():
    _, end = run([0, 0], [1, 1], [[2.0, 5.0], [2.0, 5.0]], [1, 1])
    assert end == [2.0, 5.0]


def test_a_job_that_fits_no_kind_is_left_out_and_holds_up_nobody():
    start, _ = run([0, 0], [9, 1], [[1.0], [1.0]], [2])
    assert np.isnan(start[0])
    assert start[1] == 0.0


def test_devices_freed_at_the_very_moment_of_a_submission_are_free():
    start, _ = run([0, 3], [1, 1], [[3.0], [3.0]], [1])
    assert start == [0.0, 3.0]


JOBS = st.lists(st.tuples(st.floats(0, 50), st.integers(1, 3), st.floats(0.1, 20), st.floats(0.1, 20)), max_size=20)


@given(JOBS)
def test_starts_keep_the_order_and_no_device_is_given_twice(jobs):
    jobs.sort(key=lambda job: job[0])
    run_s = [[a, b] for _, _, a, b in jobs]
    arrays = [np.array([job[i] for job in jobs]) for i in (0, 1)]
    start, end = fifo.schedule(arrays[0], arrays[1], np.array(run_s).reshape(-1, 2), np.array([3, 2]))
    assert (np.diff(start) >= 0).all()
    for moment in start:
        busy = arrays[1][(start <= moment) & (end > moment)].sum() if jobs else 0
        assert busy <= 5
