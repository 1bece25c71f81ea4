"""What happens in one history and when, drawn from a seed; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random  # noqa: TID251 - the seed of a history is its name
from typing import Final, Literal

MIB: Final = 1 << 20
SLAB_BYTES: Final = MIB
NODES: Final = ("n1", "n2", "n3", "n4")
HOMES: Final = ("n1", "n2")
"""Each has a client; both lend too."""
LEASE_S: Final = 10.0

Kind = Literal[
    "kill_donor", "end_donor", "stop_donor", "cut_from_clients", "cut_from_bus", "cut_from_all", "evict",
    "kill_client", "stop_client", "fork", "make_room",
]  # fmt: skip
NEED_NAMESPACES: Final = {"cut_from_clients", "cut_from_bus", "cut_from_all", "evict", "make_room"}
_WEIGHTS: Final[dict[Kind, float]] = {
    "kill_donor": 4, "end_donor": 1, "stop_donor": 4, "cut_from_clients": 3, "cut_from_bus": 2, "cut_from_all": 3,
    "evict": 4, "kill_client": 2, "stop_client": 1, "fork": 2,
}  # fmt: skip


@dataclass(frozen=True)
class MemoryFault:
    """
    One fault.

    Attributes
    ----------
    at_s, for_s : float
        When it begins after the clients have slabs, and how long it lasts; a killed agent stays away for so long.
    node : str
        The node that it hits; of a client, the client's home.
    detail : int
        Which directions a cut has: 1 towards the node, 2 from it, 3 both. What an evicting node has available, in MiB.
    """

    at_s: float
    kind: Kind
    node: str
    for_s: float = 0.0
    detail: int = 0

    def __str__(self) -> str:
        """Return it as a report shows it."""
        return f"{self.kind}({self.node}, {self.at_s:.1f}+{self.for_s:.1f}s{f', {self.detail}' if self.detail else ''})"


@dataclass(frozen=True)
class ClientPlan:
    """
    How one client uses its memory.

    Attributes
    ----------
    kept : bool
        Whether its file has a path, and is there after it was killed.
    disk_bytes : int
        Size of its disk, less than that of the file where that is to be full; 0 is the disk of the host.
    shares_with : str
        The node that it believes to be on its own host, whose slabs are memory shared by descriptor; empty: none.
    """

    home: str
    seed: int
    size: int
    local_bytes: int
    pending_bytes: int
    kept: bool
    disk_bytes: int
    shares_with: str


@dataclass(frozen=True)
class HistoryPlan:
    """One history: two clients, and faults in the order of their times."""

    seed: int
    number: int
    clients: tuple[ClientPlan, ...]
    faults: tuple[MemoryFault, ...]
    load_s: float

    def __str__(self) -> str:
        """Return the faults as a report shows them."""
        return f"history {self.number} of seed {self.seed}: {', '.join(map(str, self.faults))}"


def history_plan(seed: int, number: int) -> HistoryPlan:
    """
    Return what happens in a history.

    Examples
    --------
    >>> history_plan(1, 7) == history_plan(1, 7), history_plan(1, 7) == history_plan(1, 8)
    (True, False)
    """
    random = Random(f"{seed}/{number}")  # noqa: S311 - no secret
    load_s = random.uniform(2.5, 5.0)
    patient = random.random() < 0.15
    faults = [_fault(random, load_s, patient=patient) for _ in range(random.randint(2, 5))]
    killed = {fault.node for fault in faults if fault.kind == "kill_client"}
    clients = tuple(_client(random, home, must_keep=home in killed) for home in HOMES)
    faults += [
        MemoryFault(round(random.uniform(0.5, load_s), 2), "make_room", client.home)
        for client in clients
        if client.disk_bytes
    ]
    faults.sort(key=lambda fault: fault.at_s)
    return HistoryPlan(seed, number, clients, tuple(faults), load_s)


def _fault(random: Random, load_s: float, *, patient: bool) -> MemoryFault:
    kind = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
    node = random.choice(HOMES if kind in {"kill_client", "stop_client", "fork"} else NODES)
    # Shorter and longer than a client's time-out (1 s), and, where there is the patience, than a slab's lease (10 s).
    for_s = random.choice([0.2, 0.8, 1.5, 3.0] + ([LEASE_S + 2.5] * 4 if patient else []))
    if kind in {"kill_client", "fork"}:
        for_s = 0.0
    detail = random.randint(1, 3) if kind.startswith("cut_from") else 0
    if kind == "evict":
        detail, for_s = random.choice([1, 22, 28, 31]), max(for_s, 1.5)
    return MemoryFault(round(random.uniform(0.1, load_s), 2), kind, node, for_s, detail)


def _client(random: Random, home: str, *, must_keep: bool) -> ClientPlan:
    size = random.randint(3, 8) * SLAB_BYTES + random.choice([0, 8, 4104, 69_632])
    return ClientPlan(
        home=home,
        seed=random.getrandbits(32),
        size=size,
        local_bytes=random.choice([0, 0, 256 << 10, 2 * MIB]),
        pending_bytes=random.choice([128 << 10, 4 * MIB]),
        kept=must_keep or random.random() < 0.5,
        disk_bytes=size * 2 // 3 // 4096 * 4096 if random.random() < 0.12 else 0,
        shares_with=random.choice(["", "", home, *NODES[2:]]),
    )
