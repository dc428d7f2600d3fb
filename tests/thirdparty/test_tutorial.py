"""docs/plugins/tutorial.md, done as written."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS
from tests.thirdparty.clean_environment import CleanEnvironment

STEP = re.compile(r"(?:^<!-- file: (?P<file>\S+) -->\n)?^```(?P<kind>python|console)\n(?P<text>.*?)^```$", re.M | re.S)
TUTORIAL = (DOCS / "plugins" / "tutorial.md").read_text()

pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
def test_the_tutorial_works_as_written(clean: CleanEnvironment, tmp_path: Path) -> None:
    said: list[str] = []
    for step in STEP.finditer(TUTORIAL):
        text = step["text"].replace("/tmp/", f"{tmp_path}/")
        if step["kind"] == "python":
            assert step["file"], "a file without a name"
            (tmp_path / step["file"]).write_text(text)
            continue
        for line in text.splitlines():
            assert line.startswith("$ ")
            done = clean.shell(line[2:], tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            said.append(done.stdout)
    first, mistaken, fixed = [text for text in said if " requirements hold, " in text]
    assert ", 0 do not, " in first
    assert "as expected" in mistaken
    requirements = re.findall(r"^\* \*\*(.*?)\*\*", TUTORIAL, re.M)
    assert len(requirements) == 2
    assert [requirement for requirement in requirements if f"does not hold: {requirement}" not in mistaken] == []
    assert ", 0 do not, " in fixed
    assert not (tmp_path / "acme-tutorial").exists() or not any((tmp_path / "acme-tutorial").rglob("*.kv"))
    clean.pip("uninstall", "-y", "lmcache-l2-acme")
    shutil.rmtree(tmp_path / "lmcache-l2-acme")


def test_it_asks_for_less_than_sixty_lines() -> None:
    last = {step["file"]: step["text"] for step in STEP.finditer(TUTORIAL) if step["file"]}
    assert sum(bool(line.strip()) for text in last.values() for line in text.splitlines()) < 60
