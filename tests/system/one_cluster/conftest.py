"""
One cluster for all modules of this folder.

Each module leaves it as it was: with one node of four devices, and no job that runs or waits. One test process runs all
of the folder (tests/conftest.py), so that one cluster is enough.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clusters import Cluster, cluster_with


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four devices of 16 GiB on one node."""
    with cluster_with("fast:4@1.0:16GiB", tmp_path_factory.mktemp("one-cluster") / "data") as one:
        yield one
