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
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four devices of 16 GiB on one node; it ends with the last test of the folder."""
    assert isinstance(request.node, pytest.Package), "without __init__.py it would live as long as the test process"
    with cluster_with("fast:4@1.0:16GiB", tmp_path_factory.mktemp("one-cluster") / "data") as one:
        yield one
