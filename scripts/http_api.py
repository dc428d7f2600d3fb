"""Writes what follows from the code of the admin API and of the coordinator's: docs/reference/openapi.json and
coordinator-openapi.json, and the lists of routes in docs/reference/http-api.md and coordinator-api.md.

python -m scripts.http_api           # write them
python -m scripts.http_api --check   # say which are out of date, exit 1 if any is
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from lmcache_admin.api import api_about, every_core_route
from lmcache_coordinator.routes import ABOUT, coordinator_routes
from lmcache_http.application import described_routes
from lmcache_http.openapi import openapi_document
from lmcache_tools.setting_reference import entry

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
_LIST = re.compile(r"(<!-- routes: .*? -->\n).*?(<!-- end of routes -->)", re.DOTALL)
_USUAL = {"401", "403", "408", "413", "414", "421", "422", "431", "500", "503"}


def documents() -> dict[Path, str]:
    """Every generated file, by where it belongs."""
    of_a_server = openapi_document(api_about(), described_routes(every_core_route()))
    of_a_coordinator = openapi_document(ABOUT, described_routes(coordinator_routes(Mock())))
    return {
        FOLDER / "openapi.json": _json(of_a_server),
        FOLDER / "http-api.md": _page(FOLDER / "http-api.md", of_a_server),
        FOLDER / "coordinator-openapi.json": _json(of_a_coordinator),
        FOLDER / "coordinator-api.md": _page(FOLDER / "coordinator-api.md", of_a_coordinator),
    }


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def _page(path: Path, document: dict[str, Any]) -> str:
    routes = routes_list(document)
    return _LIST.sub(lambda found: f"{found[1]}\n{routes}\n{found[2]}", path.read_text())


def routes_list(document: dict[str, Any]) -> str:
    """One entry for each method of each path, by what it is about."""
    rows = []
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            own = [status for status in about["responses"] if status not in _USUAL]
            rows.append((about["tags"][0], f"`{method.upper()} {path}`", about["summary"], ", ".join(own)))
    lines = []
    for about, of_tag in groupby(sorted(rows), lambda row: row[0]):
        lines += [
            f"### {about}",
            "",
            *(entry(route, (statuses,), summary) for _, route, summary, statuses in of_tag),
            "",
        ]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    stale = [path for path, text in documents().items() if not path.exists() or path.read_text() != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.name} is out of date; run: python -m scripts.http_api")
        return 1 if stale else 0
    for path, text in documents().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
