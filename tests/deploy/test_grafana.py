"""The Grafana dashboard is what the script writes, and asks for what there is."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.grafana_dashboard import RATE, dashboard

ROOT = Path(__file__).parents[2]
SUFFIXES = ("_bucket", "_sum", "_count")


def expressions() -> list[str]:
    panels: list[dict[str, Any]] = dashboard()["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def alert_expressions() -> list[str]:
    groups = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def test_the_file_is_what_the_script_writes() -> None:
    assert json.loads((ROOT / "deploy" / "grafana" / "lmcache.json").read_text()) == dashboard()


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("expression", [*expressions(), *alert_expressions()])
def test_every_metric_that_is_asked_for_is_documented(expression: str) -> None:
    documented = set(
        re.findall(r"`((?:lmcache|process|cpython)\w*)`", (ROOT / "docs/reference/metrics.md").read_text())
    )
    documented |= {
        f"lmcache_coordinator_{name}"
        for name in re.findall(
            r"`(\w+)`", (ROOT / "docs/operate/counts.md").read_text().partition("Of a coordinator")[2]
        )
    }
    asked = set(re.findall(r"\b(?:lmcache|process|cpython)_\w+", expression))
    for name in asked:
        plain = next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), name)
        assert documented & {name, plain}, name


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_every_expression_is_one_that_prometheus_reads(tmp_path: Path) -> None:
    readable = [each.replace(RATE, "5m").replace("$instance", ".*") for each in expressions()]
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(readable)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
