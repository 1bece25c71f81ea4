"""The catalogue of metrics is what the code, the alert rules and the dashboard speak of."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock_dashboard.metric_catalogue import CATALOGUE, OF_REPLICAS, counter, gauge, histogram

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/penstock.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
NAME = re.compile(r"\b(?:penstock_[a-z_]+|DCGM_[A-Z_]+)\b")
LABELS = {"penstock_job"}


def counted() -> Iterator[tuple[str, str, str]]:
    """Yield name, type and help of each metric that a service makes, by its source."""
    for path in (path for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            words = [word.value for word in node.args if isinstance(word, ast.Constant)]
            if node.func.attr in {"counter", "gauge", "histogram"} and len(words) == 2:
                yield words[0], node.func.attr, words[1]


def test_what_replicas_count_is_in_the_catalogue_with_type_and_meaning() -> None:
    assert set(counted()) == {(kind.name, kind.type, kind.help) for kind in OF_REPLICAS}


def test_names_say_what_they_are() -> None:
    for kind in CATALOGUE.values():
        assert kind.name.endswith("_total") == (kind.type == "counter") or kind.name.startswith("DCGM"), kind
        assert kind.help.endswith("."), kind
        assert len(set(kind.labels)) == len(kind.labels), kind


def test_a_family_is_of_the_type_that_the_catalogue_says() -> None:
    assert gauge("penstock_jobs").type == "gauge"
    assert histogram("penstock_job_wait_seconds").type == "histogram"
    with pytest.raises(KeyError, match="penstock_jobs is a gauge, and no counter"):
        counter("penstock_jobs")


def names_in(expr: str) -> set[str]:
    found = set(NAME.findall(re.sub(r'"[^"]*"', '""', expr))) - LABELS
    return {re.sub(r"_(bucket|sum|count)$", "", name) if name not in CATALOGUE else name for name in found}


def test_alert_rules_and_panels_speak_of_metrics_that_there_are() -> None:
    exprs = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
    exprs += [target["expr"] for panel in PANELS for target in panel["targets"]]
    assert set().union(*map(names_in, exprs)) <= CATALOGUE.keys()
    assert all(names_in(expr) or expr.startswith("up{") for expr in exprs)


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    rules = [rule for group in RULES["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert {"summary", "description"} <= rule["annotations"].keys()


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (beside or above)


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    assert {"uid", "title", "schemaVersion", "time", "templating", "panels"} <= DASHBOARD.keys()
    every: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    assert not any(overlap(one["gridPos"], other["gridPos"]) for one, other in combinations(every, 2))
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in every)
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for panel in PANELS:
        assert panel["type"] in {"timeseries", "stat"}, panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0, panel["title"]
        used = set(re.findall(r"\$(\w+)", "".join(target["expr"] for target in panel["targets"])))
        assert used <= {*variables, "__rate_interval"}, panel["title"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no `promtool` is installed: no alert rule was tried")
def test_alerts_fire_where_they_are_to_and_nowhere_else() -> None:
    cases = ROOT / "tests/data/alerts_test.yaml"
    done = subprocess.run(["promtool", "test", "rules", str(cases)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
