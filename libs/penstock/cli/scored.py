"""A shadow's score in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.cli import render
from penstock.cli.times import clock, span

if TYPE_CHECKING:
    from penstock_shadow.plan import Status
    from penstock_shadow.rounds import Agreement
    from penstock_shadow.scoring import Score, Unscored
    from penstock_sim.report.intervals import Change, Interval

HEADERS: Final = ("TEAM", "JOBS", "MEASURED", "SHADOW", "CHANGE", "95% OF RESAMPLES", "P95", "SHADOW_P95")
SHADOW_HEADERS: Final = ("NAME", "POOL", "BEGAN", "TOLD", "SEQ", "WAITING", "RUNNING", "AHEAD", "POLICY")


def rows(score: Score) -> list[tuple[str, ...]]:
    """Return the table's rows: all jobs, and each team's."""
    return [_row("(all)", score.all), *(_row(team or "(none)", found) for team, found in score.teams.items())]


def lines(score: Score) -> list[str]:
    """Return what else there is to say."""
    plan = score.status.plan
    found = [
        f"shadow {plan.name}: {plan.policy}{_settings(plan.settings)} since {clock(plan.from_s)}, "
        f"{span(score.until_s - plan.from_s)} of the log",
        f"preemptions of these jobs: {score.preemptions} measured, {score.shadow_preemptions} in the shadow",
        _agreed(score.agreement),
    ]
    if score.behind:
        found.append(
            f"{score.behind} of these jobs are not done in the shadow; they count as old as they are, at least"
        )
    if score.status.ahead:
        ahead = render.count(score.status.ahead, "run")
        found.append(
            f"live, {ahead} held devices after their end, {span(score.status.ahead_gpu_s)} of "
            "GPU-time: their length was not known yet; the times above know it"
        )
    return [*found, _left_out(score.unscored), "it cannot know:", *(f"  - {what}" for what in score.cannot_know)]


def shadow_row(status: Status, now_s: float) -> tuple[str, ...]:
    """Return a shadow's row in the list of all."""
    plan = status.plan
    return (
        plan.name,
        plan.pool or "(all)",
        clock(plan.from_s),
        f"{span(max(0.0, now_s - status.at_s))} ago",
        str(status.seq),
        str(status.waiting),
        str(status.running),
        str(status.ahead),
        plan.policy + _settings(plan.settings),
    )


def _row(name: str, found: Change) -> tuple[str, ...]:
    return (
        name,
        str(found.jobs),
        span(found.was_avg_s),
        span(found.avg_s),
        f"{(found.ratio - 1) * 100:+.1f}%" if found.ratio is not None else "-",
        _interval(found.ratio_interval),
        span(found.was_p95_s),
        span(found.p95_s),
    )


def _interval(found: Interval | None) -> str:
    return f"{(found.low - 1) * 100:+.1f}% to {(found.high - 1) * 100:+.1f}%" if found is not None else "too few jobs"


def _settings(settings: dict[str, object]) -> str:
    return "".join(f" {name}={value}" for name, value in settings.items())


def _agreed(found: Agreement) -> str:
    within = f"within {found.within_s:.0f} s"
    rounds = f"{render.count(found.rounds, 'round')} {'starts' if found.rounds == 1 else 'start'}"
    jobs = f"{render.count(found.starts, 'job')} first {'starts' if found.starts == 1 else 'start'}"
    return (
        f"published live: {found.same} of {rounds} the same jobs {within}, "
        f"{found.same_starts} of {jobs} {within} on the same kind; "
        f"{render.count(found.preemptions, 'preemption')} measured, {found.shadow_preemptions} published"
    )


def _left_out(found: Unscored) -> str:
    counts = {
        "running": found.running,
        "waiting": found.waiting,
        "cancelled": found.cancelled,
        "failed": found.failed,
    }
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"without a true length, not scored: {told or 'none'}"
