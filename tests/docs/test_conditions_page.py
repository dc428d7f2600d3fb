"""docs/reference/conditions.md lists every condition that this repository's code reports."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/reference/conditions.md").read_text()


def reported() -> set[str]:
    sources = [*ROOT.glob("core/src/**/*.py"), *ROOT.glob("libs/*/src/**/*.py"), *ROOT.glob("plugins/*/src/**/*.py")]
    return {name for source in sources for name in re.findall(r'Condition\(\s*"(\w+)"', source.read_text())}


def test_every_condition_is_listed_and_no_other() -> None:
    listed = set(re.findall(r"^\* `(\w+)` \((?:critical|warning|info)", PAGE, re.MULTILINE))
    assert len(listed) > 20
    assert listed == reported()
