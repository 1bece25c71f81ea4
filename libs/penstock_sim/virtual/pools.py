"""Virtual clusters that lend nothing: pools of their own, as in a cluster that is run so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from penstock_events import JobSubmitted
from penstock_sim.cluster import Group, Nodes
from penstock_sim.quotas import Part
from penstock_sim.virtual import workload
from penstock_sim.virtual.script import Script

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def partitioned(script: Script, parts: Sequence[Part]) -> Script:
    """Return the script of a cluster whose nodes and jobs are those of the parts, each in a pool of its own."""
    pools = [part.name if _NAME.fullmatch(part.name) else f"vc{at}" for at, part in enumerate(parts)]
    pool_of = {row: pool for part, pool in zip(parts, pools, strict=True) for row in part.rows.tolist()}
    groups: list[Group] = []
    owners: list[str] = []
    for part, pool in zip(parts, pools, strict=True):
        groups += part.nodes.groups
        owners += [pool] * len(part.nodes.sizes)
    nodes = zip(workload.nodes(Nodes(groups)), owners, strict=True)

    def submitted(row: int) -> JobSubmitted:
        fact = script.submitted(row)
        return msgspec.structs.replace(fact, spec=msgspec.structs.replace(fact.spec, pool=pool_of[row]))

    return replace(
        script, submitted=submitted, nodes=[msgspec.structs.replace(node, pool=pool) for node, pool in nodes]
    )
