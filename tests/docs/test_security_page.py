"""docs/operate/security.md: each claim names a test, and that test is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs/operate/security.md").read_text()
NAMED: Final = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))
SECTION: Final = "## Who can do what, and which test shows it"


@cache
def functions_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize(("path", "test"), NAMED)
def test_a_test_that_is_named_is_there(path: str, test: str) -> None:
    assert (ROOT / path).is_file(), f"{path} is named on the page and is not there"
    assert test in functions_of(path), f"{path} has no {test}"
    assert test.startswith("test_")


def test_each_claim_names_a_test() -> None:
    section = PAGE.partition(f"\n{SECTION}\n")[2].partition("\n## ")[0]
    claims = re.findall(r"^\* .*(?:\n  .*)*", section, re.MULTILINE)
    assert len(claims) > 30
    assert [claim for claim in claims if "::test_" not in claim] == []
