"""The cache inside of SGLang's own process: one memory for all ranks, a disk behind it, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest

from demo.child_process import ChildError
from demo.l2_folder import L2Folder
from demo.sglang_process import SGLANG_IN_PROCESS_PYTHON, SglangProcess
from tests.engine.architectures import Architecture
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.sglang_cases import MARKS
from tests.engine.sglang_site import prompt

pytestmark = [
    *MARKS,
    pytest.mark.skipif(
        not SGLANG_IN_PROCESS_PYTHON.exists(), reason="no SGLang without the public package: run `make setup-sglang`"
    ),
]

PAGE_TOKENS: Final = 64
PROMPTS: Final = [prompt(201), prompt(202, 700)]
PAGES: Final = sum(len(each) // PAGE_TOKENS for each in PROMPTS)
SEGMENTS: Final = "/dev/shm/lmcache-l1-"
SECONDS: Final = 60.0
STORED_SECONDS: Final = 5.0
"""For stores to be over: an answer does not wait for them."""
NOT_ROOT: Final = 65_534
OLD_SECONDS: Final = 100.0
"""A socket of that age belongs to no engine that is about to listen."""


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """SGLang without any cache of ours."""
    log = tmp_path_factory.mktemp("sglang-reference") / "engine.log"
    reference = Reference(SglangProcess(log, port=None, python=SGLANG_IN_PROCESS_PYTHON))
    yield reference
    reference.close()


def engine_of(folder: Path, name: str, configuration: dict[str, Any], **more: Any) -> SglangProcess:
    """With a file of the public package's keys."""
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(configuration))
    client = {"in_process": True, "config_file": str(file), "heartbeat_seconds": 2, "lookup_timeout_ms": 5_000}
    return SglangProcess(
        folder / f"{name}.log", port=None, linker=True, client=client, python=SGLANG_IN_PROCESS_PYTHON, **more
    )


def until(good: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not good():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.1)


def mapped_by(engine: SglangProcess) -> list[set[str]]:
    """Names of caches' memory, for each process of the engine that has mapped some."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            if os.getpgid(int(process.name)) == engine.pid:
                lines = (process / "maps").read_text().splitlines()
                found.append({line.partition(SEGMENTS)[2] for line in lines if SEGMENTS in line})
    return [names for names in found if names]


def wait_unnamed(engine: SglangProcess, ranks: int = 1) -> None:
    """All ranks have mapped one memory, which nothing outside of them can find."""
    until(lambda: len(mapped_by(engine)) == ranks and all("deleted" in " ".join(each) for each in mapped_by(engine)))
    (name,) = set.union(*mapped_by(engine))
    assert not Path(SEGMENTS + name.removesuffix(" (deleted)")).exists()


def socket_of(engine: SglangProcess) -> Path:
    found = re.search(r"cache is open in this process url=ipc://(\S+)", engine.log)
    assert found, engine.log[-2_000:]
    return Path(found[1])


def connects(path: Path, user: int) -> bool:
    """Whether a process of this user does."""
    child = os.fork()
    if not child:
        status = 2
        try:
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(str(path))
            status = 0
        except PermissionError:
            status = 1
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1)
    return status == 0


def test_memory_then_disk_after_a_kill(truth: Reference, tmp_path: Path) -> None:
    l2 = L2Folder(tmp_path / "kv")
    settings = {"max_local_cpu_size": 0.2, "local_disk": str(l2.path), "max_local_disk_size": 1}
    right = truth.answers(PROMPTS)
    with engine_of(tmp_path, "first", settings) as engine:
        wait_unnamed(engine)
        cold = engine.ask(PROMPTS)
        assert_computed(cold)
        assert_right(cold, right)
        l2.wait_for_objects(PAGES, timeout_seconds=60)
        engine.flush()
        from_l1 = engine.ask(PROMPTS)
        assert_cached(from_l1, PAGE_TOKENS)
        assert_right(from_l1, right)
        assert "l1_gb=0.2 adapters=fs" in engine.log
        left = socket_of(engine)
        assert [oct(each.stat().st_mode & 0o777) for each in (left, left.parent)] == ["0o600", "0o700"]
        if os.geteuid() == 0:
            assert (connects(left, 0), connects(left, NOT_ROOT)) == (True, False)
        engine.kill()
    os.utime(left, (time.time() - OLD_SECONDS,) * 2)
    with engine_of(tmp_path, "second", settings, driver="tests.engine.sglang_orderly_end") as engine:
        own = socket_of(engine)
        assert own.exists()
        assert not left.exists(), "what a killed engine left is removed"
        from_disk = engine.ask(PROMPTS)
        assert_cached(from_disk, PAGE_TOKENS)
        assert_right(from_disk, right)
    assert not own.exists(), "SGLang asks its schedulers to end, and the linker closes the cache"
    assert "before all chunks were written" not in engine.log


@pytest.mark.alone
@pytest.mark.slow
def test_two_ranks_share_one_memory(tmp_path: Path) -> None:
    """Each has pages of its own, and a hit needs both."""
    l2 = L2Folder(tmp_path / "kv")
    settings = {"max_local_cpu_size": 0.1, "local_disk": str(l2.path), "max_local_disk_size": 1}
    tokens = [prompt(203)]
    with engine_of(tmp_path, "ranks", settings, tensor_parallel=2) as engine:
        wait_unnamed(engine, ranks=2)
        assert len(re.findall("cache is open in this process", engine.log)) == 1
        assert "l1_gb=0.2" in engine.log, "each rank brings its share"
        cold = engine.ask(tokens)
        l2.wait_for_objects(2 * (len(tokens[0]) // PAGE_TOKENS), timeout_seconds=60)
        engine.flush()
        back = engine.ask(tokens)
    assert_computed(cold)
    assert_cached(back, PAGE_TOKENS)
    assert_right(back, cold)


@pytest.mark.slow
def test_windows_have_pages_of_their_own(tmp_path: Path) -> None:
    """Each of the two pools maps the memory before it loses its name."""
    model = Architecture("mellum-windows").make(tmp_path / "model")
    tokens = [prompt(204)]
    given = {"model": model, "driver": "tests.engine.sglang_windows"}
    with engine_of(tmp_path, "windows", {"max_local_cpu_size": 0.2}, **given) as engine:
        wait_unnamed(engine)
        assert len(re.findall("registered url=ipc", engine.log)) == 2
        cold = engine.ask(tokens)
        time.sleep(STORED_SECONDS)
        engine.flush()
        back = engine.ask(tokens)
    assert_computed(cold)
    assert_cached(back, PAGE_TOKENS)
    assert_right(back, cold)


@pytest.mark.slow
def test_an_environment_with_the_public_package_is_refused(tmp_path: Path) -> None:
    engine = SglangProcess(tmp_path / "engine.log", port=None, linker=True, client={"in_process": True})
    with pytest.raises(ChildError, match="SGLang ended"):
        engine.start()
    engine.kill()
    assert "install lmcache-sglang[in-process], where the public package, lmcache, is not" in engine.log
