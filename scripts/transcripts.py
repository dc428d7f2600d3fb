"""Runs the commands that docs show, and writes what they say below them.

python -m scripts.transcripts                       # every page that has any
python -m scripts.transcripts docs/operate/doctor.md

A transcript is a fenced block of kind `console` below a line `<!-- transcript -->`; a line in it that begins with `$ ` is a
command, with the lines behind a backslash, and what follows it is replaced.  Long lines are folded.

A server runs meanwhile, with an adapter, a tenant and an engine that has used it.  Pages with `lmcache fleet` get a coordinator
with two servers instead.  The ports are 5555, 8080 and 9300, which must be free; files are shown as if they were in
/var/lib/lmcache.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from demo.child_process import ChildProcess
from demo.environment import quiet_environment
from demo.server_process import HOST, LMCACHE, ServerProcess
from lmcache_devkit import FakeEngine, free_port
from tests.remote.redis_servers import RedisServer

DOCS: Final = Path(__file__).parent.parent / "docs"
_TRANSCRIPT: Final = re.compile(r"<!-- transcript -->\n```console\n(?P<body>.*?)```\n", re.DOTALL)
_COMMAND: Final = re.compile(r"^\$ (?:.*\\\n)*.*$", re.MULTILINE)
_COLUMNS: Final = 120
_SHOWN_FOLDER: Final = "/var/lib/lmcache"
_MODEL: Final = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}


def commands_of(page: str) -> list[str]:
    """Every command that a page's transcripts show."""
    return [joined(command) for found in _TRANSCRIPT.finditer(page) for command in _COMMAND.findall(found["body"])]


def joined(command: str) -> str:
    """A command as one line, without the prompt."""
    return re.sub(r" \\\n *", " ", command.removeprefix("$ "))


def pages() -> list[Path]:
    """Those that have transcripts."""
    return [page for page in sorted(DOCS.rglob("*.md")) if _TRANSCRIPT.search(page.read_text())]


def renewed(page: str, names: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """The page with what its commands say now.  `names` are words of the docs and what they really are."""

    def run_again(found: re.Match[str]) -> str:
        commands = _COMMAND.findall(found["body"])
        said = "".join(f"{command}\n{folded(_said(joined(command), names, environment))}" for command in commands)
        return f"<!-- transcript -->\n```console\n{said}```\n"

    return _TRANSCRIPT.sub(run_again, page)


def _said(command: str, names: Mapping[str, str], environment: Mapping[str, str]) -> str:
    for shown, real in names.items():
        command = command.replace(shown, real)
    words = shlex.split(command)
    if words[0] != "lmcache":
        raise ValueError(f"only lmcache is run here, not '{words[0]}'")
    done = subprocess.run(
        [str(LMCACHE), *words[1:]],
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    text = done.stdout
    for shown, real in names.items():
        text = text.replace(real, shown)
    return text if done.returncode == 0 else f"{text}[exit code {done.returncode}]\n"


def folded(text: str) -> str:
    """Lines of at most 120 columns, as a terminal of that width would have them; each part but the first is indented."""
    return "".join(
        "\n".join(textwrap.wrap(line, _COLUMNS, subsequent_indent="      ", drop_whitespace=True)) + "\n"
        if len(line) > _COLUMNS
        else line + "\n"
        for line in text.splitlines()
    )


@contextmanager
def server_in_use(folder: Path) -> Iterator[None]:
    """A server that has something to show."""
    adapter = json.dumps({"type": "fs", "base_path": str(folder / "l2"), "max_capacity_gb": 20})
    options = ("--l1-size-gb", "0.25", "--eviction-policy", "IsolatedLRU", "--instance-id", "node-7")
    quota = ("--quota", '{"tenant-a": 0.125}', "--prometheus-port", "0")
    ports = ("--port", "5555", "--http-port", "8080")  # as readers know them
    process = ServerProcess((*options, *quota, "--l2-adapter", adapter, *ports), folder / "server.log")
    process.port, process.http_port = 5555, 8080
    with (
        process,
        FakeEngine(
            f"tcp://{HOST}:{process.port}", model="meta/llama-3-8b", salt="tenant-a", layers=32, hidden=128
        ) as engine,
    ):
        prompt = list(range(20 * engine.chunk_tokens))
        assert engine.store(prompt, "r1")
        assert engine.lookup(prompt, "r2") == 20
        assert engine.retrieve(prompt, "r2") is not None
        engine.end("r2")
        engine.lookup(list(range(5, 10 * engine.chunk_tokens)), "r3")
        engine.end("r3")
        time.sleep(1.0)  # until L2 has it
        yield


@contextmanager
def fleet_in_use(folder: Path) -> Iterator[None]:
    """A coordinator, and two servers on one Redis."""
    url = f"http://{HOST}:9300"
    child = ChildProcess(
        "lmcache coordinator",
        [str(LMCACHE), "coordinator", "--state", str(folder / "coordinator.db"), "--eviction-check-interval", "0"],
        folder / "coordinator.log",
        quiet_environment(),
    )
    redis = RedisServer(folder / "redis", free_port(), ("--save", ""))
    adapter = json.dumps({"type": "redis", "url": f"redis://{HOST}:{redis.port}", "shared": True})
    common = ("--l1-size-gb", "0.25", "--prometheus-port", "0", "--l2-adapter", adapter, "--coordinator-url", url)
    reports = ("--coordinator-l2-event-reporting", "--coordinator-l2-event-flush-interval", "0.2")
    with ExitStack() as stack:
        redis.start()
        stack.callback(redis.kill)
        stack.callback(child.kill)
        child.start()
        while not _answers(f"{url}/healthz"):
            time.sleep(0.05)
        for number in (1, 2):
            options = (*common, *reports, "--instance-id", f"node-{number}")
            server = stack.enter_context(ServerProcess(options, folder / f"node-{number}.log"))
            address = f"tcp://{HOST}:{server.port}"
            with FakeEngine(address, model="meta/llama-3-8b", salt="tenant-a", layers=32, hidden=128) as engine:
                assert engine.store(list(range(8 * number * engine.chunk_tokens)), "r1")
        time.sleep(3.0)  # until the coordinator has all of it
        yield


def _answers(url: str) -> bool:
    try:
        urlopen(url, timeout=1).close()
    except OSError:
        return False
    return True


def main(given: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "llama-3-8b").mkdir()
        (folder / "llama-3-8b" / "config.json").write_text(json.dumps(_MODEL))
        names = {_SHOWN_FOLDER: name}
        environment = {**quiet_environment(), "COLUMNS": str(_COLUMNS)}
        chosen = [Path(path) for path in given] or pages()
        of_fleet = [page for page in chosen if "$ lmcache fleet" in page.read_text()]
        for used, group in (
            (server_in_use, [page for page in chosen if page not in of_fleet]),
            (fleet_in_use, of_fleet),
        ):
            if group:
                with used(folder):
                    for page in group:
                        page.write_text(renewed(page.read_text(), names, environment))


if __name__ == "__main__":
    main(sys.argv[1:])
