"""A cache inside of a process leaves that process as it was (`open_local`)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmcache_client import ConfigError, LMCacheError
from lmcache_core import (
    HashChain,
    KeySpace,
    LocalCache,
    LookupRequest,
    Shard,
    StoredSpace,
    open_local,
    pack_kv_rank,
)

SPACE = StoredSpace(KeySpace("m", pack_kv_rank(1, 0), 0, "", 256, HashChain.BLAKE3, bytes(16)), 1000)
HASHES = [bytes([number]) * 32 for number in range(3)]
SMALL = {"l1_size_gb": 0.01}

_OPENED = f"from lmcache_core import open_local\ncache = open_local({SMALL})\n"
_STATE = (
    "import gc, logging, signal, sys, os\n"
    "state = lambda: ([signal.getsignal(n) for n in signal.valid_signals()], sys.getswitchinterval(), gc.get_threshold(),"
    " gc.isenabled(), gc.get_freeze_count(), logging.root.handlers, logging.root.level, os.environ.copy(),"
    " sys.excepthook, sys.stdout, sys.stderr)\n"
    "import lmcache_core.app.local_cache\nbefore = state()\n"
)


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=os.environ | environment
    )


def put(cache: LocalCache) -> int:
    """Store three objects; how many of them are found."""
    references, indexes = cache.storage.reserve(1, SPACE, HASHES)
    for slot in references.slots:
        cache.storage.payload(slot)[:1000] = b"x" * 1000
    assert cache.storage.publish(references, indexes[0], "r")
    return found(cache)


def found(cache: LocalCache) -> int:
    cache.storage.lookup(LookupRequest(b"c", "r", (Shard((SPACE,)),), HASHES, 1))
    chunks = cache.storage.lookup_result(b"c", "r")
    cache.storage.end_lookup(b"c", "r")
    assert chunks is not None
    return chunks


@pytest.fixture
def cache() -> Iterator[LocalCache]:
    opened = open_local(SMALL)
    yield opened
    opened.close(1.0)


def test_it_stores_and_finds_and_says_what_it_has(cache: LocalCache) -> None:
    assert put(cache) == 3
    status = cache.status()
    assert (cache.healthy, status["l1"]["kind"], status["l1"]["cached"]) == (True, "anonymous_memory", 3)
    assert status["server"]["engine_endpoint"] == ""
    assert not status["services"], "no service runs beside it"
    assert bytes(cache.region.view).count(b"x" * 1000) == 3


def test_a_freeze_refuses_stores_until_it_is_undone(cache: LocalCache) -> None:
    cache.freeze(True)
    assert not cache.storage.reserve(1, SPACE, HASHES)[0].slots
    cache.freeze(False)
    assert put(cache) == 3


def test_signals_logging_and_the_interpreter_stay_as_they_were() -> None:
    done = run(
        _STATE + _OPENED + "assert state() == before, 'opened'\ncache.close()\nassert state() == before, 'closed'"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("end", ["", "cache.close()", "import gc; del cache; gc.collect()", "raise SystemExit(0)"])
def test_nothing_is_printed_when_the_interpreter_exits(end: str) -> None:
    done = run(_OPENED + end)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_variables_of_servers_are_not_its_settings() -> None:
    done = run(
        _OPENED + "print(cache.status()['l1']['kind']); cache.close()", LMCACHE_L1_SIZE_GB="junk", LMCACHE_NO="1"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "anonymous_memory"), done.stderr


def test_a_process_has_no_memory_that_would_stay_when_it_is_killed() -> None:
    done = run(_OPENED + "print(open('/proc/self/maps').read().count('/dev/shm')); cache.close()")
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


def test_after_its_end_every_call_raises_and_touches_no_memory(cache: LocalCache) -> None:
    put(cache)
    cache.close(1.0)
    for name in ("storage", "hasher", "region", "events", "healthy"):
        with pytest.raises(LMCacheError, match="closed"):
            getattr(cache, name)
    for call in (cache.status, cache.counts, lambda: cache.freeze(True)):
        with pytest.raises(LMCacheError, match="closed"):
            call()


def test_after_a_fork_every_call_raises_in_the_child_alone(cache: LocalCache) -> None:
    names = ("storage", "hasher", "region", "events", "healthy", "status", "counts", "freeze", "close")
    child = os.fork()
    if not child:
        raised = 0
        for name in names:
            try:
                thing = getattr(cache, name)
                thing(*(True,) * (name == "freeze"))
            except LMCacheError as error:
                raised += "fork" in str(error)
            except BaseException:  # noqa: BLE001 - it counts as none that was raised
                pass
        os._exit(raised)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(names)
    assert put(cache) == 3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"l1_size": 1}, "no setting is called 'l1_size'; did you mean 'l1_size_gb'"),
        ({"l1_size_gb": -1}, "key 'l1_size_gb' is '-1'"),
        ({"config": "x.yaml"}, "key 'config': a library reads no file"),
        ({"plugins": ["nope"]}, "no plugin is called so"),
        ({"l2_adapter": [{"type": "nope"}]}, "no L2 adapter is called 'nope'"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_local(settings)


def test_what_goes_to_l2_is_written_before_it_closes_and_found_by_the_next(tmp_path: Path) -> None:
    settings = {**SMALL, "plugins": ["fs"], "l2_adapter": [{"type": "fs", "base_path": str(tmp_path)}]}
    first = open_local(settings)
    assert put(first) == 3
    assert first.close(), "all of it was written"
    assert first.close(), "closing it again does nothing"
    second = open_local(settings)
    try:
        second.storage.lookup(LookupRequest(b"c", "r", (Shard((SPACE,)),), HASHES, 1))
        answers: list[int] = []
        is_over = threading.Event()

        def take(chunks: int) -> bool:
            answers.append(chunks)
            is_over.set()
            return True

        second.storage.on_lookup(b"c", "r", take)
        assert is_over.wait(30)
        assert answers == [3]
    finally:
        second.close(1.0)
