"""Kept series before what is heard live: joined by steps, with rates between rows."""

from __future__ import annotations

from penstock_dashboard.gateway_port import PageRefused, Visitor
from penstock_dashboard.kept_series import KeptSeries, joined, points_of
from penstock_dashboard.metric_series import SAMPLES_PER_S, STEPS_PER_S, JobSeries, SeriesPoint
from penstock_log.request_bodies import RunProgress
from penstock_log.views import SeriesView


def view(**fields: object) -> SeriesView:
    default = {"steps": (1, 5, 9), "times_s": (10.0, 12.0, 14.0), "runs": (1, 1, 2), "samples": (0, 0, 0)}
    return SeriesView(id="j1", name="job", state="R", **{**default, **fields})  # type: ignore[arg-type]


def live(*steps: int) -> JobSeries:
    heard = JobSeries()
    for step in steps:
        heard.add(RunProgress(job_id="j1", epoch=2, step=step, metrics={"loss": 0.5}), float(step))
    return heard


def test_values_that_are_none_leave_no_point() -> None:
    points = points_of(view(metrics={"loss": (None, 2.0, None), "never": (None, None, None)}))
    assert points["loss"] == [SeriesPoint(5, 12.0, 2.0)]
    assert "never" not in points


def test_rates_are_of_rows_of_the_same_run() -> None:
    points = points_of(view(samples=(0, 64, 128), metrics={"loss": (1.0, 1.0, 1.0)}))
    assert points[STEPS_PER_S] == [SeriesPoint(5, 12.0, 2.0)]
    assert points[SAMPLES_PER_S] == [SeriesPoint(5, 12.0, 32.0)]


def test_what_is_heard_takes_the_place_of_kept_points_from_its_first_step_on() -> None:
    kept = points_of(view(metrics={"loss": (3.0, 2.0, 1.0)}))
    assert [point.step for point in joined(kept, live(6, 7, 8))["loss"]] == [1, 5, 6, 7, 8]
    assert [point.step for point in joined(kept, live(1, 2))["loss"]] == [1, 2]
    assert [point.step for point in joined(kept, None)["loss"]] == [1, 5, 9]
    assert [point.step for point in joined({}, live(4))["loss"]] == [4]
    assert joined({}, None) == {}


def test_a_metric_that_only_one_of_them_has_stays_and_rates_come_last() -> None:
    kept = points_of(view(metrics={"old": (3.0, 2.0, 1.0)}))
    assert [*joined(kept, live(20))] == ["old", "loss", STEPS_PER_S]


class GatewayOfSeries:
    """A gateway that refuses those whom it does not know, and whatever is asked while it is away."""

    def __init__(self) -> None:
        self.away, self.asked = False, 0

    async def query(self, visitor: Visitor, *_: object) -> SeriesView:
        self.asked += 1
        if self.away or visitor.name != "ada":
            raise PageRefused(503 if self.away else 403, "no")
        return view(metrics={"loss": (3.0, 2.0, 1.0)})


async def test_what_is_refused_to_one_or_for_a_moment_is_not_kept_from_others() -> None:
    gateway, now_s = GatewayOfSeries(), 0.0
    kept = KeptSeries(gateway, lambda: now_s)  # type: ignore[arg-type]
    ada, bob = Visitor(name="ada"), Visitor(name="bob")

    async def seen(visitor: Visitor) -> bool:
        return bool(await kept.of_job(visitor, "j1", "", is_over=True))

    assert [await seen(bob), await seen(bob)] == [False, False]
    assert gateway.asked == 1
    gateway.away = True
    assert not await seen(ada)
    gateway.away, now_s = False, 5.0
    assert [await seen(ada), await seen(ada)] == [True, True]
    assert gateway.asked == 3
