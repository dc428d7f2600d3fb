"""What `make docs` would refuse, checked without the site generator: the navigation, and the length of lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from scripts.docs_site import ROOT, complete, linked, listed_pages, pages_elsewhere, source_of
from tests.docs.test_links import links_of

DOCS: Final = ROOT / "docs"
PAGES: Final = sorted(DOCS.glob("**/*.md"))
LINE_MAX: Final = 200


class _Loader(yaml.SafeLoader):
    """mkdocs.yml names Python objects, which only the site generator imports."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def test_the_navigation_has_every_page_once() -> None:
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), _Loader)["nav"]
    assert [name for name in listed_pages(nav) if not source_of(name).is_file()] == []
    complete(nav)
    assert sorted(listed_pages(nav)) == sorted({*(str(page.relative_to(DOCS)) for page in PAGES), *pages_elsewhere()})


def test_every_distribution_has_a_page() -> None:
    folders = [path.parent for path in ROOT.glob("*/pyproject.toml")]
    folders += [
        path.parent for kind in ("libs", "plugins", "engines") for path in ROOT.glob(f"{kind}/*/pyproject.toml")
    ]
    assert {path.parent for path in pages_elsewhere().values()} >= set(folders)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_no_line_is_longer_than_a_screen(page: Path) -> None:
    lines = page.read_text().splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > LINE_MAX] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_begins_with_its_title(page: Path) -> None:
    assert re.match(r"# \S", page.read_text())


def test_links_that_leave_the_folder_lead_to_pages_of_the_site() -> None:
    names = {*(str(page.relative_to(DOCS)) for page in PAGES), *pages_elsewhere()}
    files = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*") if path.is_file()}
    wrong = []
    for name in names:
        text = linked(source_of(name).read_text(), name)
        page = DOCS / name
        for target in re.findall(r"\]\(([^()#\s]+)(?:#[^()\s]*)?\)", text):
            if "://" not in target:
                path = (page.parent / target).resolve()
                if not path.is_relative_to(DOCS) or str(path.relative_to(DOCS)) not in names | files:
                    wrong.append((name, target))
    assert wrong == []
    assert links_of(DOCS / "index.md")


def test_a_path_on_the_map_of_the_code_is_there() -> None:
    text = (DOCS / "internals/map.md").read_text()
    paths = re.findall(r"`((?:core|libs|plugins|engines|tests|scripts)/[\w/.]*)`", text)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
