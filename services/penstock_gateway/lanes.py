"""What happens to runs that share their devices, in sentences."""

from __future__ import annotations

from typing import Final

from penstock_events import LaneChanged, RunMeasured
from penstock_policies.waiting import gibibytes

_SAID: Final = {
    "entered": "takes its turns in lane {lane} of device {device}",
    "moved": "goes on in lane {lane} of device {device}",
    "parked": "is parked on device {device}: it keeps what it holds and waits at a boundary",
    "left": "has left the lanes of device {device}",
}


def sentence(fact: RunMeasured | LaneChanged, kind: str) -> str:
    """Return what a fact says, for the story of a job that has devices of this kind."""
    if isinstance(fact, LaneChanged):
        said = _SAID[fact.change].format(lane=fact.lane, device=f"{fact.node_id}/{kind}{fact.device}")
        return f"{said} ({fact.reason})" if fact.reason else said
    need = fact.need
    return (
        f"measured on {fact.node_id} over {fact.iterations} iterations: {gibibytes(need.persistent_bytes)} persistent, "
        f"{gibibytes(need.framework_bytes)} of the framework, {gibibytes(need.ephemeral_bytes)} in an iteration"
    )
