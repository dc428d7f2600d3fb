"""Every command against a running server: with a token and without, as text and as JSON, on terminals and in pipes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from demo.environment import quiet_environment
from demo.server_process import HOST, ServerProcess, preloaded
from tests.cli.conftest import TOKEN, Lmcache

ASKING = (
    ["status"],
    ["status", "--full"],
    ["describe"],
    ["ping", "kvcache"],
    ["quota", "list"],
    ["quota", "get", "tenant-a"],
    ["config", "get"],
)
"""Commands that change nothing."""


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_json_is_all_there_is(words: list[str], lmcache: Lmcache, tmp_path: Path) -> None:
    done = lmcache(*words, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    assert answer
    file = tmp_path / "answer"
    assert lmcache(*words, "--format", "json", "--output", str(file)).stdout == ""
    assert json.loads(file.read_text()).keys() == answer.keys()
    assert lmcache(*words, "-q").stdout == ""


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_text_in_a_pipe_is_plain(words: list[str], lmcache: Lmcache) -> None:
    done = lmcache(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") > 1
    assert all(line.isprintable() for line in done.stdout.splitlines())


@pytest.mark.parametrize("words", ASKING, ids=" ".join)
def test_without_a_token_the_way_to_give_one_is_said(words: list[str], lmcache: Lmcache) -> None:
    done = lmcache(*words, token=False)
    assert done.returncode == 1
    assert "answers 401 Unauthorized; give --http-token-file" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_token_itself_may_be_in_the_environment(lmcache: Lmcache) -> None:
    assert lmcache("status", "-q", token=False, LMCACHE_HTTP_TOKEN=TOKEN).returncode == 0
    wrong = lmcache("status", token=False, LMCACHE_HTTP_TOKEN="another-token")
    assert wrong.returncode == 1
    assert "another-token" not in wrong.stderr


def test_status_answers_the_questions_of_an_operator(lmcache: Lmcache) -> None:
    text = lmcache("status").stdout
    lines = text.splitlines()
    assert lines[0] == "healthy"
    assert "instance node-7" in lines[1]
    assert re.search(r"^L1  \[#", text, re.MULTILINE)
    assert re.search(r"^tenant-a +\S+ KiB +32 MiB +\S+ % +1 +160 +100\.0 %", text, re.MULTILINE)
    assert re.search(r"^acme/llama +- +1 +shared_memory", text, re.MULTILINE)
    assert re.search(r"^fs +ok +\d+ ", text, re.MULTILINE)
    assert "100.0 % of the chunks asked for were hit, 0.0 % by way of L2" in lines
    watched = lmcache("status", "--watch", "0.2", "--times", "2").stdout
    assert watched.count("healthy\n") == 2
    assert "PER SECOND" in watched


def test_watching_ends_with_ctrl_c_and_that_is_not_a_failure(server: ServerProcess, home: Path) -> None:
    known = {
        "LMCACHE_URL": f"http://{HOST}:{server.http_port}",
        "LMCACHE_HTTP_TOKEN_FILE": str(home / "token"),
    }
    command = [sys.executable, "-m", "lmcache_core", "status", "--watch", "0.2", "--json"]
    child = subprocess.Popen(
        command, env={**quiet_environment(), **known}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["healthy"] is True
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=30)
    finally:
        child.kill()
    assert (child.returncode, said) == (0, "")


def test_description(lmcache: Lmcache) -> None:
    described = json.loads(lmcache("describe", "--json").stdout)
    (model,) = described["models"]
    assert model["model_name"] == "acme/llama"
    assert model["chunk_tokens"] == 16
    assert model["object_bytes"] == 4096 + 2 * 16 * 64 * 4
    assert [tier["tier"] for tier in described["tiers"]] == ["L1", "fs"]
    assert "A cache server, version" in lmcache("describe").stdout


def test_ping(lmcache: Lmcache, server: ServerProcess) -> None:
    pings = json.loads(lmcache("ping", "kvcache", "--json").stdout)["pings"]
    assert [ping["what"] for ping in pings] == ["engine port", "admin API"]
    assert all(ping["healthy"] and ping["answers"] == 5 for ping in pings)
    assert pings[0]["address"] == f"tcp://{HOST}:{server.port}"
    alone = lmcache("ping", "--host", HOST, "--port", str(server.port), "--count", "1", token=False)
    assert alone.returncode == 0


def test_quotas_and_clearing(lmcache: Lmcache) -> None:
    assert lmcache("quota", "set", "tenant-b", "--limit-gb", "0.01").stdout == "'tenant-b' may use 0.01 GiB of L1\n"
    assert "tenant-b  0.01" in lmcache("quota", "list").stdout
    assert json.loads(lmcache("quota", "delete", "tenant-b", "--json").stdout)["status"] == "removed"
    gone = lmcache("quota", "delete", "tenant-b")
    assert gone.returncode == 1
    assert "has no quota of its own" in gone.stderr


def test_the_running_configuration(lmcache: Lmcache, server: ServerProcess) -> None:
    url = f"http://{HOST}:{server.http_port}"
    settings = json.loads(lmcache("config", "get", "--json", "--url", url).stdout)["settings"]
    assert settings["chunk_size"]["value"] == 16
    assert settings["chunk_size"]["source"] == "flag"
    assert "--chunk-size 16" in lmcache("config", "get", "--as-flags").stdout


@pytest.mark.parametrize("words", [["clear"], ["kvcache", "clear"]])
def test_clearing_by_both_names(words: list[str], lmcache: Lmcache) -> None:
    assert lmcache(*words, "--json").returncode == 0
    assert lmcache(*words).stdout.startswith("dropped 0 objects of L1")


def on_terminal(width: int, server: ServerProcess, home: Path, *arguments: str, **env: str) -> str:
    """What a terminal of this width gets."""
    master, slave = pty.openpty()
    known = {
        "LMCACHE_URL": f"http://{HOST}:{server.http_port}",
        "LMCACHE_HTTP_TOKEN_FILE": str(home / "token"),
        "COLUMNS": str(width),
        "TERM": "xterm-256color",
    }
    command = [sys.executable, "-m", "lmcache_core", *arguments]
    inherited = {name: value for name, value in quiet_environment().items() if name != "NO_COLOR"}
    with open(slave, "wb") as terminal:
        child = preloaded().popen(command, {**inherited, **known, **env}, terminal, piped=False)
    said = bytearray()
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline:
            if not select.select([master], [], [], 1.0)[0]:
                continue
            try:
                part = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            said += part
        assert child.wait(10) == 0
    finally:
        child.send_signal(signal.SIGKILL)
        os.close(master)
    return said.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminal_of_any_width(width: int, server: ServerProcess, home: Path) -> None:
    for words in (["status"], ["describe"], ["quota", "list"], ["pins", "list"]):
        lines = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(width, server, home, *words)).splitlines()
        assert max(map(len, lines)) <= width, words


def test_colours(server: ServerProcess, home: Path) -> None:
    assert "\x1b[32mhealthy" in on_terminal(80, server, home, "status")
    assert "\x1b[32m" not in on_terminal(80, server, home, "status", NO_COLOR="1")
    assert "\x1b" not in on_terminal(80, server, home, "status", TERM="dumb")


@pytest.mark.parametrize(
    "words", [["status", "--full"], ["config", "show"], ["server", "--help"], ["completion", "zsh"]]
)
def test_a_closed_pipe_is_not_reported_as_a_failure(words: list[str], server: ServerProcess, home: Path) -> None:
    environment = {
        **quiet_environment(),
        "LMCACHE_URL": f"http://{HOST}:{server.http_port}",
        "LMCACHE_HTTP_TOKEN_FILE": str(home / "token"),
    }
    reading, writing = os.pipe()
    os.close(reading)  # gone before the first byte
    command = [sys.executable, "-m", "lmcache_core", *words]
    with open(writing, "wb") as closed:
        done = subprocess.run(command, env=environment, stdout=closed, stderr=subprocess.PIPE, timeout=60, check=False)
    assert done.stderr == b""
