"""The chart's containers, run as their manifests say: every service at once, and a job to its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helm_chart import needs_helm, of_kind, rendered, values_of
from rendered_pods import RenderedCluster, needs_root

pytestmark = [needs_helm, needs_root, pytest.mark.helm, pytest.mark.timeout(900)]
ONE_EACH = ("gateway", "ranker", "matcher")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RenderedCluster]:
    """Start everything of the minimal values, in the order in which the pods' Secrets let them start."""
    single = [f"--set=services.{name}.replicas=1" for name in ONE_EACH]  # two of a kind are one manifest
    settings = '--set-json=config="[gateway]\\nopen_jobs = 77\\n"'
    objects = rendered("--values", str(values_of("minimal")), *single, settings)
    made = RenderedCluster(tmp_path_factory.mktemp("cluster"), objects, {})
    with made.running():
        (job,) = made.start("Job", next(one["metadata"]["name"] for one in of_kind(objects, "Job")))
        assert job.run().wait() == 0, job.said()
        for kind in ("StatefulSet", "Deployment", "DaemonSet"):
            started = [pod for one in of_kind(objects, kind) for pod in made.start(kind, one["metadata"]["name"])]
            for pod in started:
                pod.run()
            for pod in started:
                pod.wait_ready()
        yield made


def test_every_container_is_ready_by_its_probes_and_a_job_runs_to_its_end(cluster: RenderedCluster) -> None:
    (pod,) = cluster.start("Pod", "demo-penstock-test")
    assert pod.run().wait() == 0, pod.said()
    assert "a job ran on demo-penstock-executor-emulated-0" in pod.said()
