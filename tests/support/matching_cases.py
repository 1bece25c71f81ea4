"""Instances of the matching, reference values and slow oracles."""

from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from penstock_policies.matching import UNFIT


def arrays(case):
    """Return the lengths and ready times of a reference case."""
    return np.array(case["p"], dtype=np.int64), [np.array(r, dtype=np.int64) for r in case["ready"]]


@st.composite
def instances(draw, max_jobs=12, max_machines=4):
    """Draw lengths and ready times: with many ties or few, on kinds with no machine or more machines than jobs."""
    jobs, kinds = draw(st.integers(0, max_jobs)), draw(st.integers(1, 3))
    longest = draw(st.sampled_from([1, 3, 9, 10**6, 10**13]))
    length = st.one_of(st.integers(0, longest), st.integers(0, longest), st.just(UNFIT))
    rows = draw(st.lists(st.lists(length, min_size=kinds, max_size=kinds), min_size=jobs, max_size=jobs))
    ready = st.lists(st.integers(0, draw(st.sampled_from([0, 3, 3 * longest]))), max_size=max_machines)
    return np.array(rows, dtype=np.int64).reshape(jobs, kinds), [
        np.array(draw(ready), dtype=np.int64) for _ in range(kinds)
    ]


def by_flow(p, ready):
    """Return the least sum of completion times and, among such schedules, of places, by networkx's network simplex."""
    usable = [t for t, r in enumerate(ready) if len(r)]
    jobs = [j for j in range(len(p)) if any(p[j, t] != UNFIT for t in usable)]
    graph = nx.MultiDiGraph()
    graph.add_node("end", demand=len(jobs))
    scale = len(jobs) + 1
    for j in jobs:
        graph.add_node(j, demand=-1)
    for t in usable:
        for k in range(1, len(jobs) + 1):
            for w in ready[t].tolist():
                graph.add_edge((t, k), "end", capacity=1, weight=w * scale)
            for j in jobs:
                if p[j, t] != UNFIT:
                    graph.add_edge(j, (t, k), capacity=1, weight=k * (int(p[j, t]) * scale + 1))
    if not jobs:
        return 0, 0
    cost, flow = nx.network_simplex(graph)
    places = sum(node[1] for j in jobs for node, parallel in flow[j].items() for sent in parallel.values() if sent)
    return (cost - places) // scale, places
