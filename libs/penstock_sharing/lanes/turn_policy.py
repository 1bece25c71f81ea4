"""
Lane policies by name, and the queue of those who ask for a turn.

A lane policy (``lane_policy`` of the executor) is called a turn policy here. It gives each member a number, and the
lowest goes first; equal numbers go by who has asked longer, which is round-robin among them. The number of a member
that asks does not change before its turn, so a heap holds them.

============  ==================================================  ======================================================
policy        lowest first                                        without patience, a member that asks
============  ==================================================  ======================================================
fifo          arrival                                             waits until all who came before it are done
srtf          what is left, where known                           can starve: by those who have less left
las           service attained                                    can starve: by those who keep arriving
fair          time in this lane, level with the others at first   is behind another by two turns at most
round-robin   since when it asks                                  waits one turn of each other member at most
priority      highest priority                                    can starve: by those of higher priority
============  ==================================================  ======================================================

*Patience* bounds the wait under all of them: who has asked for ``patience_s`` is next, the longest first. Of ``m``
members each then gets a turn within ``patience_s`` and ``m`` turns.

References
----------
Yu and Chowdhury, Salus: Fine-Grained GPU Sharing Primitives for Deep Learning Applications, MLSys 2020, section 3.4.
Goyal, Vin, Cheng, Start-time Fair Queueing, SIGCOMM 1996 (``fair``).
Gu et al., Tiresias, NSDI 2019 (``las``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final, Literal, NamedTuple, TypeAlias

TurnPolicyName = Literal["fifo", "srtf", "las", "fair", "round-robin", "priority"]

_LONG_S: Final = 1e9
HANDOVER_SHARE: Final = 0.02
"""Of a turn: the most that handing over may cost."""


@dataclass(slots=True, eq=False)
class MemberStanding:
    """
    What a policy may look at of one member.

    Attributes
    ----------
    job_id : str
    order : int
        Order of arrival at the device.
    service_s : float
        Attained in all, before it came here too.
    remaining_s : float
        What is left of its service; infinite where nobody knows.
    priority : int
        Higher goes first.
    lane_s : float
        Time in this lane, counted from the time that the others had when it came, or came back from asking for nothing.
    asked : int
        Number of its request, among all of its lane.
    asked_s : float or None
        Since when it asks for a turn in this lane; None while it does not.
    hurried : bool
        It is to stop at its next boundary: it goes before all others, whatever the policy.
    """

    job_id: str
    order: int
    service_s: float = 0.0
    remaining_s: float = math.inf
    priority: int = 0
    lane_s: float = 0.0
    asked: int = 0
    asked_s: float | None = None
    hurried: bool = False


class TurnForecast(NamedTuple):
    """
    Who comes after the holder of a turn, and when.

    Attributes
    ----------
    job_id : str
    lead_s : float, seconds
        For how long the holder may go on before, from the beginning of its turn; infinite where nobody's waiting ends
        it. The least turn is for whoever hands turns over to say.
    """

    job_id: str
    lead_s: float


TurnPolicy: TypeAlias = Callable[[MemberStanding], float]
"""The place of a member among those who ask, lowest first."""

TURN_POLICIES: Final[dict[TurnPolicyName, TurnPolicy]] = {
    "fifo": lambda member: member.order,
    "srtf": lambda member: member.remaining_s,
    "las": lambda member: member.service_s,
    "fair": lambda member: member.lane_s,
    "round-robin": lambda _: 0.0,
    "priority": lambda member: -member.priority,
}


class TurnQueue:
    """
    The members of one lane that ask for a turn.

    Parameters
    ----------
    policy : TurnPolicy
    patience_s : float or None
        Who has asked for so long is next; None: the policy alone decides.

    Notes
    -----
    ``ask``, ``take``, ``forget``: O(log m) amortised, and so much again for each member that ``take`` passes over.

    Examples
    --------
    >>> asking = TurnQueue(TURN_POLICIES["srtf"], patience_s=10.0)
    >>> asking.ask(MemberStanding("long", 0, remaining_s=100.0), 0.0)
    >>> asking.ask(MemberStanding("short", 1, remaining_s=1.0), 1.0)
    >>> asking.take(2.0).job_id
    'short'
    >>> asking.ask(MemberStanding("shorter", 2, remaining_s=0.5), 3.0)
    >>> asking.take(11.0).job_id
    'long'
    """

    def __init__(self, policy: TurnPolicy, patience_s: float | None) -> None:
        self._policy, self._patience_s = policy, patience_s
        self._since: dict[str, MemberStanding] = {}  # who has asked longest comes first
        self._hurried: dict[str, None] = {}
        self._heap: list[tuple[float, int, MemberStanding]] = []
        self._asked = 0
        self._clock_s = 0.0  # the time in this lane of whoever had the last turn, when he got it

    def __len__(self) -> int:
        return len(self._since)

    def welcome(self, member: MemberStanding) -> None:
        """
        Take in one who comes from elsewhere, neither ahead of the others nor behind them.

        It may be asking: patience counts from when it began to.
        """
        member.lane_s = self._clock_s
        if member.asked_s is not None:
            asked_s = member.asked_s
            self._push(member, asked_s)
            later = [name for name, other in self._since.items() if asked_s < (other.asked_s or 0.0)]
            self._since |= {name: self._since.pop(name) for name in later}

    def ask(self, member: MemberStanding, now_s: float) -> None:
        """Note that a member wants a turn; one that asks already keeps its place."""
        if member.job_id not in self._since:
            self._push(member, now_s)

    def take(self, now_s: float, may: Callable[[str], bool] = lambda _: True) -> MemberStanding | None:
        """Return who is next, who then asks no more; None where nobody asks. ``may`` is that of :meth:`first`."""
        member = self.first(now_s, may)
        return None if member is None else self.pick(member)

    def first(self, now_s: float, may: Callable[[str], bool] = lambda _: True) -> MemberStanding | None:
        """
        Return who is next, who goes on asking; None where nobody asks.

        Parameters
        ----------
        may : callable
            Whether a member may have a turn now; others keep their places. One that has asked for too long may always.
        """
        if self._hurried:
            return self._since[next(iter(self._hurried))]
        return next(iter(self._since.values())) if self.is_impatient(now_s) else self._lowest(may)

    def is_impatient(self, now_s: float) -> bool:
        """Return whether somebody has asked for too long, and so is next under every policy."""
        return bool(self._since) and self._patience_left_s(next(iter(self._since.values())), now_s) <= 0.0

    def pick(self, member: MemberStanding) -> MemberStanding:
        """Return a member that gets the turn, whoever is next; it asks no more."""
        self.forget(member)
        member.asked_s = None
        self._clock_s = max(self._clock_s, member.lane_s)
        return member

    def ahead(self, holder: MemberStanding, now_s: float) -> TurnForecast | None:
        """Return who is next after a holder whose turn begins now and who asks again; None where nobody else asks."""
        member = self.first(now_s)
        if member is None:
            return None
        if member.hurried:
            return TurnForecast(member.job_id, 0.0)
        longest, lead_s = next(iter(self._since.values())), max(0.0, self._lead_s(holder, member))
        patient_s = max(0.0, self._patience_left_s(longest, now_s))
        return TurnForecast(longest.job_id, patient_s) if patient_s < lead_s else TurnForecast(member.job_id, lead_s)

    def _lead_s(self, holder: MemberStanding, member: MemberStanding) -> float:
        """Return how long the holder stays before another one by the policy alone; places change by 1 a second."""
        served = replace(
            holder,
            service_s=holder.service_s + _LONG_S,
            lane_s=holder.lane_s + _LONG_S,
            remaining_s=max(0.0, holder.remaining_s - _LONG_S),
        )
        now, later, other = self._policy(holder), self._policy(served), self._policy(member)
        again = self._policy(replace(holder, lane_s=max(holder.lane_s, self._clock_s)))  # as it will ask, at the least
        if now < other <= again:
            return 0.0
        if later > now:
            return other - now
        return math.inf if now < other or (now == other and later < now) else 0.0

    def _patience_left_s(self, member: MemberStanding, now_s: float) -> float:
        if self._patience_s is None or member.asked_s is None:
            return math.inf
        return self._patience_s - (now_s - member.asked_s)

    def hurry(self, member: MemberStanding) -> None:
        """Let a member that is hurried come first, if it asks."""
        if member.hurried and member.job_id in self._since:
            self._hurried[member.job_id] = None

    def forget(self, member: MemberStanding) -> None:
        """Take out a member that leaves the lane; that it asks is kept, for its next one."""
        self._since.pop(member.job_id, None)
        self._hurried.pop(member.job_id, None)
        if len(self._heap) > 2 * len(self._since) + 16:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapify(self._heap)

    def _push(self, member: MemberStanding, now_s: float) -> None:
        self._asked += 1
        member.asked, member.asked_s = self._asked, now_s
        member.lane_s = max(member.lane_s, self._clock_s)
        self._since[member.job_id] = member
        self.hurry(member)
        heappush(self._heap, (self._policy(member), self._asked, member))

    def _lowest(self, may: Callable[[str], bool]) -> MemberStanding | None:
        passed_over, found = [], None
        while self._heap and found is None:
            if not self._counts(self._heap[0]):
                heappop(self._heap)
            elif may(self._heap[0][2].job_id):
                found = self._heap[0][2]
            else:
                passed_over.append(heappop(self._heap))
        for entry in passed_over:
            heappush(self._heap, entry)
        return found

    def _counts(self, entry: tuple[float, int, MemberStanding]) -> bool:
        _, asked, member = entry
        return member.asked == asked and self._since.get(member.job_id) is member


def quantum(handover_us: float, iteration_us: float, share: float = HANDOVER_SHARE) -> int:
    """
    Return how many iterations a turn is, so that handing over costs at most a share of it.

    Parameters
    ----------
    handover_us, iteration_us : float, microseconds
        As measured; the turn is its iterations and one hand-over.
    share : float
        Between 0 and 1, both excluded.

    Raises
    ------
    ValueError
        If one of them is out of range.

    Examples
    --------
    >>> quantum(handover_us=30.0, iteration_us=10_000.0), quantum(30.0, 100.0)
    (1, 15)
    """
    if not (handover_us >= 0 and iteration_us > 0 and 0 < share < 1):
        raise ValueError(
            f"handover_us={handover_us}, iteration_us={iteration_us}, share={share} are out of range; "
            "expected 0 or more, more than 0, and between 0 and 1"
        )
    return max(1, math.ceil(handover_us * (1.0 - share) / (share * iteration_us)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRules:
    """
    How a device is shared.

    Attributes
    ----------
    policy : {"fifo", "srtf", "las", "fair", "round-robin", "priority"}
        Whose turn it is in a lane.
    patience_s : float or None
        Who has asked for a turn for so long gets one, whatever the policy; None: the policy alone decides.
    overtakes : int
        Jobs that stood behind a waiting one and may enter before it.
    least_gain : float
        Gain in throughput below which one more lane is not worth it: 0.05 is 5 %.
    retry_s : float
        For how long a number of lanes that was not worth it is not tried again.
    most_lanes : int or None
        Most lanes of the device; 1 is time-sharing alone.
    merges : bool
        Whether lanes close where a waiting job would fit if there were fewer.
    spreads : bool
        Whether members move to new or emptier lanes while nobody waits.

    Raises
    ------
    ValueError
        If one of them is out of range.
    """

    policy: TurnPolicyName = "fair"
    patience_s: float | None = 30.0
    overtakes: int = 8
    least_gain: float = 0.05
    retry_s: float = 600.0
    most_lanes: int | None = None
    merges: bool = True
    spreads: bool = True

    def __post_init__(self) -> None:
        _expect(self.policy in TURN_POLICIES, f"policy {self.policy!r}", f"one of {', '.join(TURN_POLICIES)}")
        _expect(self.patience_s is None or self.patience_s >= 0, f"patience_s {self.patience_s}", "0 or more, or None")
        _expect(self.overtakes >= 0, f"overtakes {self.overtakes}", "0 or more")
        _expect(self.retry_s >= 0, f"retry_s {self.retry_s}", "0 or more")
        _expect(self.most_lanes is None or self.most_lanes >= 1, f"most_lanes {self.most_lanes}", "1 or more, or None")


def _expect(holds: bool, given: str, expected: str) -> None:
    if not holds:
        raise ValueError(f"{given} is out of range; expected {expected}")
