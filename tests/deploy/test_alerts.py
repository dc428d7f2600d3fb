"""The alert rules are valid, fire when they should, and lead to a runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((PROMETHEUS / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def promtool(*arguments: str) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_each_rule_fires_when_it_should_and_not_otherwise() -> None:
    promtool("test", "rules", "alerts.test.yml")


@needs_promtool
def test_the_configuration_is_one_that_prometheus_takes() -> None:
    promtool("check", "config", "prometheus.yml")


def test_every_rule_is_tried_both_ways() -> None:
    tried: dict[str, set[bool]] = {}
    for test in yaml.safe_load((PROMETHEUS / "alerts.test.yml").read_text())["tests"]:
        for each in test["alert_rule_test"]:
            tried.setdefault(each["alertname"], set()).add(bool(each.get("exp_alerts")))
    assert tried == {rule["alert"]: {True, False} for rule in rules()}


def test_every_rule_has_a_runbook_and_every_runbook_a_rule() -> None:
    text = (ROOT / "docs" / "operate" / "runbooks.md").read_text()
    assert re.findall(r"^## (\w+)$", text, re.M) == [rule["alert"] for rule in rules()]
