"""The examples of docs/engines/client.md run verbatim, against a server, and every name of the client is on the page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lmcache_client
from tests.conftest import StartServer
from tests.docs.markdown import DOCS, blocks

EXAMPLES = blocks("engines/client.md", "python")
SAYS = {"A first call": ["ServerHello(boot_id=", "True"], "Many threads": ["True 0"], "asyncio": ["[True, 256]"],
        "Chunks in shared memory": ["True", "[0, 1]"],
        "Hashes of an engine's own": ["0"], "Noticing a restart": ["True"]}  # fmt: skip
"""What each prints, in order, by its heading."""


@pytest.mark.parametrize(("heading", "says"), SAYS.items(), ids=SAYS.keys())
def test_an_example_runs(heading: str, says: list[str], start_server: StartServer, tmp_path: Path) -> None:
    server = start_server("--l1-size-gb", "0.1")
    source = EXAMPLES[list(SAYS).index(heading)]
    assert "tcp://127.0.0.1:5555" in source
    script = tmp_path / "example.py"
    script.write_text(source.replace("tcp://127.0.0.1:5555", f"tcp://127.0.0.1:{server.port}"))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(says)
    assert [line[: len(said)] for line, said in zip(lines, says, strict=True)] == says


def test_no_example_is_left_out() -> None:
    text = (DOCS / "engines/client.md").read_text()
    assert len(EXAMPLES) == len(SAYS)
    assert [heading for heading in SAYS if f"\n## {heading}\n" not in text] == []


def test_every_class_of_the_client_is_on_the_page() -> None:
    text = (DOCS / "engines/client.md").read_text()
    stub = Path(lmcache_client.__file__).with_suffix(".pyi").read_text()
    modules = ("async_client", "channel", "client", "heartbeat", "l1_segment", "prompt_tokens")
    lines = [line for line in stub.splitlines() if line.startswith("from .") and line.split()[1][1:] in modules]
    names = [name for line in lines for name in re.findall(r"(\w+) as \1", line)]
    assert len(names) > 5
    assert [name for name in names if f"`{name}" not in text and f"{name}." not in text] == []
