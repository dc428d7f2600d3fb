"""A cache in the process of an engine's first rank, without SGLang."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from demo.l2_folder import L2Folder
from engines.sglang.tests.rank import HEARTBEAT_SECONDS, Rank
from lmcache_client import ConfigError
from lmcache_devkit import free_port
from lmcache_engine import in_process as shared
from lmcache_sglang import in_process
from lmcache_sglang.in_process import joined
from lmcache_sglang.settings import LinkerSettings
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess

GIVEN: Mapping[str, Any] = {
    "in_process": True,
    "heartbeat_seconds": HEARTBEAT_SECONDS,
    "lookup_timeout_ms": 5_000,
    "timeout_seconds": 20.0,
}
SMALL: Mapping[str, Any] = {"max_local_cpu_size": 0.02}
WHOLE = [0, 1, 2]
SECONDS = 60.0
MAPPED_SECONDS = 4.0
"""After which memory has lost its name where all have mapped it."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """For sockets, whose paths have to be short.  No variable of this process is a setting."""
    for name in [name for name in os.environ if name.startswith("LMCACHE_")]:
        monkeypatch.delenv(name)
    with tempfile.TemporaryDirectory(prefix="lm-") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield Path(short)
        monkeypatch.undo()


def configured(folder: Path, **more: Any) -> dict[str, Any]:
    """What a linker is given, with a file of the public package's keys."""
    file = folder / "lmcache.yaml"
    file.write_text(json.dumps({**SMALL, **more}))
    return {**GIVEN, "config_file": str(file)}


def stored(folder: Path) -> int:
    """Objects on disk."""
    return len(L2Folder(folder / "kv").objects())


def until(good: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not good():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.02)


def sockets(place: Path) -> list[Path]:
    return sorted(place.glob("lmcache-*/*.sock"))


def test_ranks_share_one_memory_that_has_no_name(place: Path, tmp_path: Path) -> None:
    given = configured(tmp_path)
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(Rank(given, rank, 2, links=2, meet=tmp_path / "meet", folder=place))
            for rank in range(2)
        ]
        urls = {rank.heard()["url"] for rank in ranks}
        assert urls == {f"ipc://{sockets(place)[0]}"}
        segment = Path("/dev/shm", ranks[0].ask("segment"))
        assert ranks[1].ask("segment") == segment.name
        time.sleep(MAPPED_SECONDS)
        assert segment.exists(), "a pool of each rank has not mapped it yet"
        for rank in ranks:
            assert rank.ask("connect")
        until(lambda: not segment.exists())
        assert ranks[0].ask("status")["l1"]["capacity_bytes"] == pytest.approx(0.04 * 2**30, rel=0.02), "for each rank"
        (path,) = sockets(place)
        assert [oct(each.stat().st_mode & 0o777) for each in (path, path.parent)] == ["0o600", "0o700"]
        for number, rank in enumerate(ranks, 1):
            assert not rank.ask("read", number)
            assert rank.ask("store", number) == WHOLE
            assert rank.ask("read", number)
        assert not ranks[1].ask("read", 1), "each rank has pages of its own"

        # Ranks that were lost register again with memory that they cannot map a second time.
        ranks[0].ask("lose")
        until(lambda: len(ranks[0].ask("status")["workers"]) == 2 * len(ranks))
        for number, rank in enumerate(ranks, 1):
            until(partial(rank.ask, "ready"))
            assert rank.ask("read", number)
            assert rank.ask("store", 10 + number) == WHOLE
            assert rank.ask("read", 10 + number)
    assert [rank.process.returncode for rank in ranks] == [0, 0]
    assert not sockets(place)


def test_what_was_on_disk_outlives_a_kill_and_the_next_start_tidies_up(place: Path, tmp_path: Path) -> None:
    given = configured(tmp_path, local_disk=str(tmp_path / "kv"), max_local_disk_size=1)
    with Rank(given, meet=tmp_path / "one", folder=place) as first:
        assert "url" in first.heard()
        assert first.ask("store", 3) == WHOLE
        until(lambda: stored(tmp_path) == 3)
        segment = Path("/dev/shm", first.ask("segment"))
        until(lambda: not segment.exists())
        first.process.kill()
        first.process.wait()
    (left,) = sockets(place)
    long_ago = time.time() - shared.STALE_SECONDS - 1
    os.utime(left, (long_ago, long_ago))
    with Rank(given, meet=tmp_path / "two", folder=place) as second:
        assert "url" in second.heard()
        assert not left.exists()
        assert second.ask("read", 3)


def test_an_engine_that_ends_writes_what_is_under_way(place: Path, tmp_path: Path) -> None:
    given = configured(tmp_path, local_disk=str(tmp_path / "kv"), max_local_disk_size=1)
    with Rank(given, meet=tmp_path / "one", folder=place) as first:
        first.heard()
        for number in range(1, 21):
            first.ask("store", number)
    assert stored(tmp_path) == 60


def test_an_error_of_the_first_rank_is_one_of_all(place: Path, tmp_path: Path) -> None:
    given = configured(tmp_path, chunk_sise=256)
    began = time.monotonic()
    with ExitStack() as stack:
        ranks = [stack.enter_context(Rank(given, rank, 2, meet=tmp_path / "meet", folder=place)) for rank in range(2)]
        said = {rank.heard()["error"] for rank in ranks}
    assert said == {"ValueError: in_process: no key is called 'chunk_sise'; did you mean 'chunk_size'?"}
    assert time.monotonic() - began < 45.0, "and no wait for each other's time limit"


def opened(settings: LinkerSettings) -> shared.ServedCache:
    return in_process._opened(settings, 1, 1, 0)


@pytest.mark.parametrize(
    ("more", "variables", "says"),
    [
        ({"enable_blending": True}, {}, "'enable_blending' is True: vLLM's connector blends"),
        ({"enable_pd": True, "pd_role": "sender"}, {}, "'enable_pd' is True: vLLM's connector hands prompts over"),
        ({"mp_host": "127.0.0.1"}, {}, "'mp_host' is '127.0.0.1': for a client of a server"),
        ({"enable_p2p": True}, {}, "peers find each other by a coordinator"),
        ({"max_local_cpu_size": 1e6}, {}, "('l1_size_gb' is 'max_local_cpu_size' for each of 1 workers)"),
        ({}, {"LMCACHE_LOCAL_DISC": "/x"}, "no key is called 'LMCACHE_LOCAL_DISC'; did you mean 'LMCACHE_LOCAL_DISK'?"),
        ({}, {"LMCACHE_MAX_LOCAL_CPU_SIZE": "much"}, "'max_local_cpu_size' is 'much': expected a number"),
    ],
)
def test_bad_input_is_refused_by_name(
    more: Mapping[str, Any],
    variables: Mapping[str, str],
    says: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as raised:
        opened(LinkerSettings.read(configured(tmp_path, **more)))
    assert str(raised.value).startswith("in_process: ")
    assert says in str(raised.value)
    assert not sockets(place)


def test_a_file_that_is_not_there_is_refused(place: Path) -> None:
    with pytest.raises(ValueError, match=r"in_process: /nowhere\.yaml: cannot be read"):
        opened(LinkerSettings.read({**GIVEN, "config_file": "/nowhere.yaml"}))


def test_what_has_no_effect_is_said(place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = configured(tmp_path, chunk_size=512, blocking_timeout_secs=30, save_decode_cache=True, use_layerwise=True)
    with caplog.at_level(logging.WARNING):
        opened(LinkerSettings.read(given)).close()
    assert "'chunk_size' has no effect: an object is a page of --page-size tokens" in caplog.text
    assert "'blocking_timeout_secs' has no effect: a step of SGLang waits" in caplog.text
    assert "'save_decode_cache' has no effect" in caplog.text
    assert "use_layerwise" not in caplog.text, "loads are layer by layer"


def test_variables_go_before_the_file_and_the_file_before_that_of_the_variable(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("max_local_cpu_size: 0.5\ncache_policy: MRU\n")
    monkeypatch.setenv("LMCACHE_CONFIG_FILE", str(other))
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.03")
    cache = opened(LinkerSettings.read(configured(tmp_path, max_local_cpu_size=0.1)))
    try:
        assert cache.cache.status()["l1"]["capacity_bytes"] == pytest.approx(0.03 * 2**30, rel=0.02)
    finally:
        cache.close()


def test_the_public_package_is_refused(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "version", lambda name: "0.5.6")
    with pytest.raises(ValueError, match=r"in_process: this environment has the public package, lmcache 0\.5\.6"):
        opened(LinkerSettings.read(configured(tmp_path)))


def test_without_the_package_that_opens_it_the_extra_is_named(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmcache_engine.in_process", None)
    with pytest.raises(ValueError, match=r"install lmcache-sglang\[in-process\]"):
        opened(LinkerSettings.read(GIVEN))


def test_several_machines_are_refused() -> None:
    with pytest.raises(ConfigError, match="in_process with --nnodes 2: ranks of one machine map one memory"):
        joined(LinkerSettings.read(GIVEN), SimpleNamespace(nnodes=2), 1)


def test_with_a_server_nothing_of_it_is_imported() -> None:
    program = (
        "import sys; from lmcache_sglang.in_process import joined; from lmcache_sglang.settings import LinkerSettings; "
        "given = LinkerSettings.read({'port': 6000}); assert joined(given, None, 1) == (given, None); "
        "print([name for name in sys.modules if name.startswith(('lmcache_core', 'lmcache_engine', 'pydantic'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_what_a_peer_has_is_found(place: Path, tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path) as coordinator, ExitStack() as stack:
        ranks = []
        for name in ("one", "other"):
            folder = tmp_path / name
            folder.mkdir()
            given = configured(
                folder,
                enable_p2p=True,
                p2p_host="127.0.0.1",
                p2p_init_ports=[free_port()],
                extra_config={
                    "server": {"coordinator_url": coordinator.url, "coordinator_heartbeat_interval": HEARTBEAT_SECONDS}
                },
            )
            ranks.append(stack.enter_context(Rank(given, meet=folder / "meet", folder=place)))
            assert "url" in ranks[-1].heard()
        assert ranks[0].ask("store", 5) == WHOLE
        until(lambda: ranks[1].ask("read", 5))


@pytest.mark.slow
def test_a_frozen_first_rank_costs_a_lookup(place: Path, tmp_path: Path) -> None:
    given = {**configured(tmp_path), "lookup_timeout_ms": 500}
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(Rank(given, rank, 2, meet=tmp_path / "meet", folder=place)) for rank in range(2)
        )
        for rank in (first, second):
            assert "url" in rank.heard()
        assert second.ask("store", 6) == WHOLE
        os.kill(first.process.pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert not second.ask("read", 6)
            assert not second.ask("read", 6)
            assert time.monotonic() - began < 5.0
        finally:
            os.kill(first.process.pid, signal.SIGCONT)
        until(lambda: second.ask("ready"))
        assert second.ask("read", 6)


def test_a_socket_that_may_be_about_to_listen_stays(place: Path, tmp_path: Path) -> None:
    folder = Path(
        shared.InProcessMode("in_process", "", 1.0, logging.getLogger()).endpoint("x").removeprefix("ipc://")
    ).parent
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "young.sock"))
    opened(LinkerSettings.read(configured(tmp_path))).close()
    assert [each.name for each in sockets(place)] == ["young.sock"]
