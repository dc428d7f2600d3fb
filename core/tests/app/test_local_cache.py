"""A cache inside of a process leaves that process as it was (`open_local`)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
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
from lmcache_core.app.server import Server
from lmcache_devkit.fake_engine import FakeEngine

SPACE = StoredSpace(KeySpace("m", pack_kv_rank(1, 0), 0, "", 256, HashChain.BLAKE3, bytes(16)), 1000)
HASHES = [bytes([number]) * 32 for number in range(3)]
SMALL: dict[str, object] = {"l1_size_gb": 0.01}
OPEN_MS_MAX, OPENED_MB_MAX = 150, 45

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


def test_an_interrupt_while_it_opens_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, segments = Server.start, {*os.listdir("/dev/shm")}

    def interrupted(server: Server) -> None:
        begin(server)
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "start", interrupted)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        open_local({**SMALL, "l1_shared_memory": True})
    assert threading.active_count() == before
    assert {*os.listdir("/dev/shm")} <= segments


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
    for name in ("storage", "hasher", "region", "control", "healthy"):
        with pytest.raises(LMCacheError, match="closed"):
            getattr(cache, name)
    for call in (cache.status, cache.counts, lambda: cache.freeze(True), lambda: cache.serve("tcp://127.0.0.1:0")):
        with pytest.raises(LMCacheError, match="closed"):
            call()


def test_a_cache_for_one_process_has_no_socket_and_few_threads() -> None:
    done = run(
        "import sys\n" + _OPENED + "print('zmq' in sys.modules, sorted(cache.status()['modules'])); cache.close()"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "False []"), done.stderr


def test_it_opens_soon_and_is_small(tmp_path: Path) -> None:
    """Two adapters; in processor time, which a busy machine does not lengthen."""
    adapters = [{"type": "fs", "base_path": str(tmp_path)}, {"type": "memory"}]
    settings = SMALL | {"plugins": ["fs"], "l2_adapter": adapters}
    done = run(
        "import time\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "bare = resident()\n"
        "import lmcache_core.app.local_cache\n"
        "from lmcache_core import open_local\n"
        "begin = time.process_time()\n"
        f"cache = open_local({settings})\n"
        "print((time.process_time() - begin) * 1000, (resident() - bare - cache.status()['l1']['backed_bytes']) / 1e6)\n"
        "cache.close()"
    )
    milliseconds, megabytes = map(float, done.stdout.split())
    assert milliseconds < OPEN_MS_MAX, done.stderr
    assert megabytes < OPENED_MB_MAX


def test_after_a_fork_every_call_raises_in_the_child_alone(cache: LocalCache) -> None:
    names = (
        "storage",
        "hasher",
        "region",
        "control",
        "healthy",
        "status",
        "counts",
        "freeze",
        "serve",
        "close",
    )
    child = os.fork()
    if not child:
        raised = 0
        for name in names:
            try:
                thing = getattr(cache, name)
                thing(*("ipc:///nowhere",) * (name in ("freeze", "serve")))
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


# --- for other processes


@pytest.fixture
def shared() -> Iterator[LocalCache]:
    opened = open_local(SMALL | {"l1_shared_memory": True, "chunk_size": 16})
    yield opened
    opened.close(1.0)


def until(condition: Callable[[], bool], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_services_of_the_plugins_that_are_named_run(tmp_path: Path) -> None:
    opened = open_local(SMALL | {"plugins": ["blend"]})
    try:
        assert [*opened.status()["services"]] == ["blend"]
        modules = {*opened.status()["modules"]}
        assert "lookup" in modules, "services find the modules that answer engines"
        with pytest.raises(LMCacheError):
            opened.serve(f"ipc://{tmp_path}/{'x' * 100}")
        opened.serve(f"ipc://{tmp_path}/engine/s")
        assert {*opened.status()["modules"]} == modules, "they were opened once"
    finally:
        assert opened.close(1.0)


@pytest.mark.parametrize("is_unix", [True, False])
def test_workers_of_other_processes_share_what_it_has(shared: LocalCache, tmp_path: Path, is_unix: bool) -> None:
    asked = f"ipc://{tmp_path}/engine/port.sock" if is_unix else "tcp://127.0.0.1:0"
    endpoint = shared.serve(asked)
    if is_unix:
        assert [
            oct(each.stat().st_mode & 0o777) for each in (tmp_path / "engine", *(tmp_path / "engine").iterdir())
        ] == [
            "0o700",
            "0o600",
        ]
    assert shared.status()["server"]["engine_endpoint"] == endpoint
    assert shared.status()["modules"]
    tokens = list(range(64))
    with FakeEngine(endpoint) as one, FakeEngine(endpoint) as other:
        assert one.store(tokens)
        assert other.lookup(tokens) == 4
        assert other.retrieve(tokens) == [other.content(tokens, chunk) for chunk in range(4)]
        other.end()
    assert shared.close()
    assert not is_unix or not list((tmp_path / "engine").iterdir())


def test_the_segment_loses_its_name_when_all_workers_have_mapped_it(shared: LocalCache) -> None:
    endpoint, segment = shared.serve("tcp://127.0.0.1:0", workers=2), Path("/dev/shm", shared.status()["l1"]["segment"])
    with FakeEngine(endpoint) as one:
        time.sleep(3.5)
        assert one.worker.ping(one.instance_id)
        assert segment.exists(), "another one is to come"
        with FakeEngine(endpoint) as other:

            def is_gone() -> bool:
                assert one.worker.ping(one.instance_id)
                assert other.worker.ping(other.instance_id)
                return not segment.exists()

            assert until(is_gone)
            tokens = list(range(32))
            assert one.store(tokens)
            assert other.lookup(tokens) == 2
            assert other.retrieve(tokens) == [other.content(tokens, chunk) for chunk in range(2)]


def test_a_process_that_is_killed_leaves_a_socket_until_the_next_start(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/engine/port.sock"
    opened = f"from lmcache_core import open_local\ncache = open_local({SMALL})\ncache.serve({endpoint!r})\n"
    killed = run(opened + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert killed.returncode == -9, killed.stderr
    again = run(opened + "print(cache.close())")
    assert (again.returncode, again.stdout.strip()) == (0, "True"), again.stderr


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("tcp://0.0.0.0:0", "expected ipc:///path"),
        ("tcp://127.0.0.1:5555", "expected ipc:///path"),
        ("ipc://relative", "expected ipc:///path"),
        ("port", "expected ipc:///path"),
        ("ipc:///dev/null/port.sock", "/dev/null cannot be made for a socket"),
        ("ipc:///tmp/port.sock", "others may enter /tmp"),
        ("ipc://{folder}/" + "x" * 200, "cannot be opened for engines"),
    ],
)
def test_endpoints_that_others_reach_are_refused(cache: LocalCache, tmp_path: Path, endpoint: str, said: str) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(LMCacheError, match=said):
        cache.serve(endpoint.format(folder=tmp_path))
    assert put(cache) == 3, "it goes on without"
    assert cache.serve("tcp://127.0.0.1:0")
    with pytest.raises(ConfigError, match="already"):
        cache.serve("tcp://127.0.0.1:0")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes links of others")
def test_a_folder_behind_a_link_of_another_user_is_refused(cache: LocalCache, tmp_path: Path) -> None:
    """They could have it lead elsewhere afterwards."""
    (tmp_path / "mine").mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "mine")
    os.lchown(link, 12345, 12345)
    with pytest.raises(ConfigError, match="others may enter"):
        cache.serve(f"ipc://{link}/port.sock")
    os.lchown(link, os.geteuid(), -1)
    assert cache.serve(f"ipc://{link}/port.sock")


def test_two_caches_at_one_endpoint_are_one_and_an_error(cache: LocalCache, shared: LocalCache, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/engine/port.sock"
    assert shared.serve(endpoint) == endpoint
    with pytest.raises(LMCacheError, match="no other server may use it"):
        cache.serve(endpoint)
    with FakeEngine(endpoint) as engine:
        assert engine.store(list(range(32))), "the first one goes on"
    assert cache.close(1.0)
    assert Path(endpoint.removeprefix("ipc://")).is_socket(), "and has its socket"


def test_a_socket_path_of_108_bytes_is_refused_and_of_107_is_not(cache: LocalCache, tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    name = "x" * (107 - len(f"{folder}/"))
    with pytest.raises(LMCacheError, match="AF_UNIX path too long"):
        cache.serve(f"ipc://{folder}/{name}x")
    assert cache.serve(f"ipc://{folder}/{name}")


def test_wrong_bytes_close_its_connection_alone(shared: LocalCache, tmp_path: Path) -> None:
    endpoint = shared.serve(f"ipc://{tmp_path}/engine/port.sock")
    long = b"\xff" + bytes(8) + b"\x01\x7f" + b"NULL".ljust(53, b"\0") + b"\x02" + (2**60).to_bytes(8, "big")
    with FakeEngine(endpoint) as engine:
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", bytes(5000), long):
            with socket.socket(socket.AF_UNIX) as other:
                other.connect(endpoint.removeprefix("ipc://"))
                with suppress(ConnectionError):
                    other.sendall(data)
                assert engine.store(list(range(len(data), len(data) + 32)))
    assert shared.healthy


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_worker_has_the_bytes_that_it_mapped_after_the_cache_has_ended(tmp_path: Path, end: str) -> None:
    """And nothing is left in /dev/shm."""
    endpoint = f"ipc://{tmp_path}/engine/port.sock"
    settings = SMALL | {"l1_shared_memory": True, "chunk_size": 16}
    script = (
        f"import sys\nfrom lmcache_core import open_local\ncache = open_local({settings})\ncache.serve({endpoint!r})\n"
        "print(cache.status()['l1']['segment'], flush=True)\nsys.stdin.read()\ncache.close()\n"
    )
    tokens = list(range(32))
    with (
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner,
        ExitStack() as ends,
    ):
        ends.callback(owner.kill)
        assert owner.stdin
        assert owner.stdout
        name = Path("/dev/shm", owner.stdout.readline().decode().strip())
        engine = FakeEngine(endpoint).__enter__()
        ends.callback(engine.close)
        assert engine.store(tokens)
        assert engine.segment is not None
        offset = engine.segment.find(engine.content(tokens, 0))
        assert offset >= 0
        if end == "close":
            owner.stdin.close()
        else:
            assert until(lambda: engine.worker.ping(engine.instance_id) and not name.exists())
            owner.kill()
        owner.wait(20)
        assert not name.exists()
        content = engine.content(tokens, 0)
        assert engine.segment[offset : offset + len(content)] == content


def test_of_threads_that_serve_it_at_once_one_does(cache: LocalCache) -> None:
    served: list[str] = []

    def serve() -> None:
        with suppress(ConfigError):
            served.append(cache.serve("tcp://127.0.0.1:0"))

    threads = [threading.Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(served) == 1
