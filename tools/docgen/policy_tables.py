"""Tables of the queue policies within documents that are written by hand, from the registry."""

from pathlib import Path
from typing import Final

from penstock_policies.queue_policies import FALLS_BY, QUEUE_POLICIES

BEGIN: Final = "<!-- queue policies, from the registry: make docs -->"
END: Final = "<!-- end of queue policies -->"


def ranking(path: Path) -> str:
    """Return the document of the ranker with its table of orders."""
    rows = [
        f"| `{name}` | {FALLS_BY[policy.demotes_by]} | {policy.within} | {policy.says} |"
        for name, policy in QUEUE_POLICIES.items()
    ]
    head = ["| `order` | a job falls to the next queue by | within a queue | in words |", "|---|---|---|---|"]
    return _with(path, [*head, *rows])


def simulation(path: Path) -> str:
    """Return the document of the simulator with the policies that the fast path counts."""
    counted = [f"`{name}`" for name, policy in QUEUE_POLICIES.items() if not policy.not_counted]
    others = [
        f"* `{name}` is not counted: {policy.not_counted}"
        for name, policy in QUEUE_POLICIES.items()
        if policy.not_counted
    ]
    return _with(path, [f"It counts {', '.join(counted[:-1])} and {counted[-1]}.", *others])


def _with(path: Path, lines: list[str]) -> str:
    """Return a document with these lines between the two marks."""
    before, _, rest = path.read_text(encoding="utf-8").partition(f"{BEGIN}\n")
    _, _, after = rest.partition(f"{END}\n")
    return "\n".join([f"{before}{BEGIN}", *lines, f"{END}\n{after}"])
