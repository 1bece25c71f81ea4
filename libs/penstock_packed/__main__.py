"""
Run a file of members as one process: ``python -m penstock_packed members.py``.

The file defines ``members(host)``, which calls ``host.train(...)`` and ``host.serve(...)``. Run by Penstock, the
process is a job like any other; by hand it needs nothing around it.
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

from penstock_packed import device
from penstock_packed.device import CpuDevice, TurnDevice
from penstock_packed.host import MemberOutcome, PackedHost
from penstock_packed.request_server import RequestServer
from penstock_sharing.lanes import TURN_POLICIES, LaneRules


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where at least one member, or with ``--strict`` every one, has finished."""
    given = _parser().parse_args(arguments)
    logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr)
    module = _load(given.file)
    host = PackedHost(_device(given), rules=LaneRules(policy=given.policy))
    module.members(host)
    if not host.names:
        raise SystemExit(f"members(host) of {given.file} took in nobody; expected it to call host.train or host.serve")
    with RequestServer(given.listen, host.endpoints) if given.listen else nullcontext():
        outcomes = host.run()
    sys.stdout.write(_table(outcomes))
    failed = [outcome for outcome in outcomes.values() if outcome.stage == "failed"]
    return int(bool(failed) and (given.strict or len(failed) == len(outcomes)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m penstock_packed", description="Run many small jobs in one process."
    )
    parser.add_argument("file", type=Path, help="defines members(host)")
    parser.add_argument("--policy", choices=sorted(TURN_POLICIES), default="fair", help="whose turn it is among trials")
    parser.add_argument(
        "--lanes", type=_at_least(int, 0), default=0, help="turns at a time; by default 1 on a processor, 2 on a GPU"
    )
    parser.add_argument(
        "--memory-gib",
        type=_at_least(float, 0),
        default=0.0,
        help="what all members may have; by default what the device has",
    )
    parser.add_argument("--listen", type=Path, metavar="SOCKET", help="take requests to models on a Unix socket")
    parser.add_argument("--strict", action="store_true", help="fail if one member has failed, not only if all have")
    return parser


def _device(given: argparse.Namespace) -> TurnDevice:
    capacity_bytes = int(given.memory_gib * 2**30)
    found = device.here(given.lanes, capacity_bytes) if "torch" in sys.modules else None
    return found or CpuDevice(capacity_bytes, given.lanes or 1)


def _at_least(kind: type[int] | type[float], least: int) -> Callable[[str], float]:
    def number(text: str) -> float:
        found = kind(text)
        if not least <= found < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is out of range; expected {least} or more")
        return found

    number.__name__ = "number"  # in the message where it is none
    return number


def _load(path: Path) -> ModuleType:
    """Return the file as a module; what lies beside it can be imported from it."""
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise SystemExit(f"{path} is not a Python file that is there; expected one that defines members(host)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if not hasattr(module, "members"):
        raise SystemExit(f"{path} defines no members(host); expected a function that calls host.train and host.serve")
    return module


def _table(outcomes: Mapping[str, MemberOutcome]) -> str:
    width = max((len(name) for name in outcomes), default=0)
    return "".join(f"{name:<{width}}  {_row(outcome)}\n" for name, outcome in outcomes.items())


def _row(outcome: MemberOutcome) -> str:
    shown = "  ".join(f"{metric} {value:.4g}" for metric, value in outcome.metrics.items())
    return f"{outcome.stage:<8}  {outcome.steps:>6} steps  {outcome.reason or shown}"


if __name__ == "__main__":
    sys.exit(main())
