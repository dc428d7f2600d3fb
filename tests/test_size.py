"""Core does not grow, and the client library stays apart from it (docs/internals/size.md)."""

from __future__ import annotations

import json
import subprocess
import sys

from scripts.size import AIM_FILES, AIM_LINES, LONGEST, ROOT, brings, folders, size

LINES_MAX = 26_134
FILES_MAX = 163
"""What core has today, and a little.  Lower them when core gets smaller, until they are the aims."""


def test_core_gets_no_larger() -> None:
    core = size(folders()["lmcache-core"])
    assert core.lines <= LINES_MAX, f"core is to have {AIM_LINES:,} lines: what do the new ones replace?"
    assert core.files <= FILES_MAX, f"core is to have {AIM_FILES} files: does one that is there hold the concept?"
    assert core.longest <= LONGEST, "cut the longest file by meaning"


def test_the_limits_follow_core_down() -> None:
    core = size(folders()["lmcache-core"])
    assert max(core.lines, AIM_LINES) > 0.9 * LINES_MAX, "core is smaller: lower LINES_MAX"
    assert max(core.files, AIM_FILES) > 0.9 * FILES_MAX, "core has fewer files: lower FILES_MAX"


def test_an_engine_gets_no_web_framework_with_the_connector() -> None:
    own = folders()
    brought = brings("lmcache-vllm", own)
    assert {"lmcache-client", "msgspec", "pyzmq", "blake3"} <= brought, "dependencies of dependencies are counted"
    assert not brought & {"lmcache-core", "litestar", "uvicorn", "pydantic", "rich", "stevedore", "pluggy"}


def test_all_names_of_the_client_library_come_without_core() -> None:
    script = (
        "import json, sys; from lmcache_client import *; print(json.dumps([EngineClient.__module__, *sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    origin, *loaded = json.loads(done.stdout)
    assert origin == "lmcache_client.client"
    late = ("lmcache_core", "pydantic", "litestar", "asyncio")
    assert not {name for name in loaded if name.partition(".")[0] in late}


def test_the_page_has_a_row_for_each_distribution() -> None:
    text = (ROOT / "docs" / "internals" / "size.md").read_text()
    rows = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| lmcache-")}
    assert rows == set(folders()), "python -m scripts.size > docs/internals/size.md"
