"""The cache in the engine's own process, without an engine."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from engines.vllm.tests.test_worker_transfers import TOKENS
from engines.vllm.tests.worker_kit import CHUNK_TOKENS, fused_hnd, rig, transfer, until
from lmcache_client import EngineChannel, LMCacheError
from lmcache_client.handoff import HANDOFF_WAIT
from lmcache_core import LocalCache
from lmcache_devkit import free_port
from lmcache_engine import in_process
from lmcache_engine.in_process import InProcessMode
from lmcache_vllm.in_process import InProcessCache, endpoint_of, is_layerwise, split, with_blending
from lmcache_vllm.settings import Settings
from lmcache_vllm.transfer_session import STOP_SECONDS

SMALL: Mapping[str, Any] = {"max_local_cpu_size": 0.03, "chunk_size": CHUNK_TOKENS}
BLOCKS = [[*range(1, 9)]]
VLLM_WAITS_SECONDS = 5.0
"""For an engine to end; then it is killed."""
PD: Mapping[str, Any] = {
    **SMALL,
    "enable_pd": True,
    "pd_role": "sender",
    "pd_peer_host": "127.0.0.1",
    "extra_config": {"server": {"coordinator_url": "http://127.0.0.1:9"}},
}
"""Nothing listens there: a coordinator may come later."""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short, as a socket's path has to be, and empty; no variable of this process is a setting."""
    for name in [name for name in os.environ if name.startswith("LMCACHE_")]:
        monkeypatch.delenv(name)
    with tempfile.TemporaryDirectory(prefix="lm-") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        yield
        monkeypatch.undo()


@pytest.fixture
def cache() -> Iterator[InProcessCache]:
    opened = open_cache()
    yield opened
    opened.close()


def open_cache(overrides: Mapping[str, Any] = SMALL, url: str = "", workers: int = 1) -> InProcessCache:
    return InProcessCache(overrides, url or endpoint_of("engine"), workers=workers, block_tokens=4)


def test_a_worker_stores_and_loads_and_nothing_has_a_name(cache: InProcessCache) -> None:
    paged = fused_hnd("float32")
    order = transfer(TOKENS, BLOCKS)
    with rig(endpoint_of("engine"), paged) as worker:
        assert worker.until(lambda: worker.side._usable)
        worker.store(order)
        named = Path("/dev/shm", cache._served.cache.status()["l1"]["segment"])
        assert worker.until(lambda: not named.exists())
        before = paged.blocks_of(BLOCKS)
        paged.wipe()
        worker.load(transfer(TOKENS, BLOCKS, request="r2"))
        assert all((one == other).all() for one, other in zip(before, paged.blocks_of(BLOCKS), strict=True))
        # What it was registered with is lost; it is mapped, and cannot be mapped again.
        workers = cache._served.cache._server.parts.engine_port.workers
        for each in workers.registered():
            workers.unregister(each.instance_id, "test")
        assert worker.until(lambda: worker.counts.get("lost_servers:worker", 0) > 0)
        assert worker.until(lambda: worker.side._usable)
        paged.wipe()
        worker.load(transfer(TOKENS, BLOCKS, request="r3"))
        assert all((one == other).all() for one, other in zip(before, paged.blocks_of(BLOCKS), strict=True))


def test_a_worker_without_the_process_of_the_engine_runs_uncached(caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    with rig(endpoint_of("engine"), fused_hnd("float32")) as worker:
        assert time.monotonic() - began < 1.0, "it is opened after the workers"
        worker.load(transfer(TOKENS, BLOCKS))
        assert worker.counts["failed_loads:no_server"] == 1
        assert until(lambda: "the engine's process has not opened its cache" in caplog.text)


def test_the_folder_and_the_socket_are_this_users_alone(cache: InProcessCache) -> None:
    path = Path(endpoint_of("engine").removeprefix("ipc://"))
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    assert oct(path.parent.stat().st_mode & 0o777) == "0o700"
    assert endpoint_of("other") != endpoint_of("engine")


def test_a_folder_that_others_may_enter_is_refused() -> None:
    Path(tempfile.gettempdir(), f"lmcache-{os.geteuid()}").mkdir(mode=0o755)
    with pytest.raises(ValueError, match=r"is not a folder of this user alone \(mode 0700\): remove it, or set TMPDIR"):
        endpoint_of("engine")


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    Path(tempfile.gettempdir(), f"lmcache-{os.geteuid()}").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="is not a folder of this user alone"):
        endpoint_of("engine")


def test_a_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    Path(tempfile.gettempdir(), f"lmcache-{other}").mkdir(mode=0o700)
    with pytest.raises(ValueError, match="is not a folder of this user alone"):
        endpoint_of("engine")


def test_a_file_in_place_of_the_folder_is_refused() -> None:
    Path(tempfile.gettempdir(), f"lmcache-{os.geteuid()}").touch()
    with pytest.raises(ValueError, match=r"lmcache\.in_process: .* cannot be made for a socket: File exists"):
        endpoint_of("engine")


def test_a_forked_child_that_ends_leaves_the_cache_to_its_parent(cache: InProcessCache) -> None:
    """As a child of the engine does that ends as Python programs end: what is to be done at the end is inherited."""
    child = os.fork()
    if not child:
        status = 1
        try:
            cache.close()
            with pytest.raises(LMCacheError, match="opened before a fork"):
                cache._served.cache.status()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with rig(endpoint_of("engine"), fused_hnd("float32")) as worker:
        worker.until(lambda: worker.side._usable)
        worker.store(transfer(TOKENS, BLOCKS))
        assert worker.counts.get("stores") == 1


def test_what_a_killed_engine_left_is_removed_and_nothing_else(cache: InProcessCache) -> None:
    folder = Path(endpoint_of("engine").removeprefix("ipc://")).parent
    stale, young = folder / "stale.sock", folder / "young.sock"
    for path in (stale, young):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    long_ago = time.time() - in_process.STALE_SECONDS - 1
    for path in (stale, *folder.glob("[0-9a-f]*.sock")):
        os.utime(path, (long_ago, long_ago))
    other = open_cache(url=endpoint_of("other"))
    other.close()
    assert {each.name for each in folder.iterdir()} == {Path(endpoint_of("engine")).name, "young.sock"}
    with EngineChannel(endpoint_of("engine")) as channel:
        assert channel.hello("test") is not None, "it goes on"


def test_an_engine_that_was_killed_before_its_workers_came_leaves_nothing_to_the_next() -> None:
    url = endpoint_of("engine")
    program = (
        "import os, signal; from lmcache_vllm.in_process import InProcessCache; "
        f"opened = InProcessCache({dict(SMALL)}, {url!r}, workers=1, block_tokens=4); "
        "print(opened._served.cache.status()['l1']['segment'], flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60)
    left = Path("/dev/shm", done.stdout.strip())
    assert (done.returncode, left.exists()) == (-signal.SIGKILL, True)
    opened = open_cache(url=url)
    try:
        assert not left.exists()
        with EngineChannel(url) as channel:
            assert channel.hello("test") is not None
    finally:
        opened.close()


def test_two_engines_of_one_id_are_refused(cache: InProcessCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="an engine of this id runs already; give each an 'engine_id' of its own"):
        open_cache()
    monkeypatch.setattr(InProcessMode, "_check_alone", lambda mode, path: None)
    with rig(endpoint_of("engine"), fused_hnd("float32")) as worker:
        assert worker.until(lambda: worker.side._usable)
        mapped = worker.side._session._mapped
        cache.close()
        other = open_cache()
        try:
            assert worker.until(lambda: "is not the one of this engine" in worker.side._session.failure_reason, 30.0)
            assert worker.side._session._mapped is mapped
        finally:
            other.close()


def test_a_frozen_engine_whose_queue_is_full_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "END_SECONDS", 0.2)
    path = endpoint_of("engine").removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX) as frozen, ExitStack() as waiting, ThreadPoolExecutor(1) as pool:
        frozen.bind(path)
        frozen.listen(1)
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
        peers = (waiting.enter_context(socket.socket(socket.AF_UNIX, kind)) for _ in range(100))
        assert any(peer.connect_ex(path) for peer in peers), "the queue is full"
        try:
            with pytest.raises(ValueError, match="an engine of this id runs already"):
                pool.submit(open_cache).result(10.0)
        finally:
            frozen.close()  # which wakes one that waits


def test_memory_is_for_all_workers() -> None:
    opened = open_cache(workers=2)
    try:
        assert opened._served.cache.status()["l1"]["capacity_bytes"] == pytest.approx(0.06 * 2**30, rel=0.02)
    finally:
        opened.close()


def test_keys_of_the_configuration_are_there_in_this_mode_alone() -> None:
    extra = {"lmcache.in_process": True, "lmcache.max_local_cpu_size": 2, "lmcache.save_decode": True, "other": 1}
    own, overrides = split(extra)
    assert own == {"lmcache.in_process": True, "lmcache.save_decode": True, "other": 1}
    assert overrides == {"max_local_cpu_size": 2}
    del extra["lmcache.in_process"]
    with pytest.raises(ValueError, match=r"'lmcache\.max_local_cpu_size' in kv_connector_extra_config is not known"):
        Settings.of(split(extra)[0])


def test_the_connector_takes_its_part_of_the_configuration() -> None:
    opened = open_cache({**SMALL, "save_decode_cache": True, "save_unfull_chunk": True, "blocking_timeout_secs": 7})
    try:
        applied = opened.applied(Settings(), {"lmcache.save_tail": False})
    finally:
        opened.close()
    assert (applied.save_decode, applied.save_tail, applied.prefetch_timeout_seconds) == (True, False, 7)


def test_a_range_of_lookups_has_no_effect(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = {"local_disk": str(tmp_path / "kv"), "max_local_disk_size": 1}
    open_cache({**SMALL, **disk, "retrieve_locations": ["LocalCPUBackend"]}).close()
    assert "'retrieve_locations' has no effect: lookups ask all tiers" in caplog.text


def test_the_file_then_the_variables_then_the_engines_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "lmcache.yaml").write_text("chunk_size: 64\nmax_local_cpu_size: 0.1\ncache_policy: FIFO\n")
    monkeypatch.setenv("LMCACHE_CONFIG_FILE", str(tmp_path / "lmcache.yaml"))
    monkeypatch.setenv("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.05")
    monkeypatch.setenv("LMCACHE_CACHE_POLICY", "LFU")
    monkeypatch.setenv("LMCACHE_SERVICE_HOST", "10.0.0.1")
    opened = open_cache({"max_local_cpu_size": 0.03})
    opened.close()
    config = opened.config
    assert (config.chunk_size, config.max_local_cpu_size, config.cache_policy) == (64, 0.03, "LFU")
    assert "'LMCACHE_SERVICE_HOST' has no effect" in caplog.text
    assert {record.name for record in caplog.records if "no effect" in record.message} == {"lmcache_vllm.in_process"}


@pytest.mark.parametrize(
    ("overrides", "variables", "says"),
    [
        ({"chunk_sise": 256}, {}, "no key is called 'chunk_sise'; did you mean 'chunk_size'?"),
        (
            {},
            {"LMCACHE_CHUNK_SISE": "256"},
            "no key is called 'LMCACHE_CHUNK_SISE'; did you mean 'LMCACHE_CHUNK_SIZE'?",
        ),
        ({"chunk_size": 30}, {}, "'chunk_size' is 30, which is not a multiple of vLLM's blocks of 4"),
        ({"max_local_cpu_size": 0}, {}, "'max_local_cpu_size' is 0"),
        ({"max_local_cpu_size": 1e6}, {}, "('l1_size_gb' is 'max_local_cpu_size' for each of 1 workers)"),
        ({"remote_url": "nope://x"}, {}, "'remote_url' is 'nope://...'"),
        ({}, {"LMCACHE_CONFIG_FILE": "/nowhere.yaml"}, "/nowhere.yaml: cannot be read"),
        ({"enable_pd": True, "pd_role": "decoder"}, {}, "'pd_role' is 'decoder': expected one of sender"),
        ({"enable_p2p": True}, {}, "peers find each other by a coordinator"),
        ({**PD, "pd_peer_host": "192.0.2.1", "pd_peer_init_port": [7300]}, {}, "cannot be bound"),
    ],
)
def test_bad_input_is_refused_by_name(
    overrides: Mapping[str, Any], variables: Mapping[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    threads = len(os.listdir("/proc/self/task"))
    with pytest.raises(ValueError) as raised:
        open_cache({**SMALL, **overrides})
    assert str(raised.value).startswith("lmcache.in_process: ")
    assert says in str(raised.value)
    assert until(lambda: len(os.listdir("/proc/self/task")) <= threads)


def test_a_path_that_is_too_long_for_a_socket_is_refused_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    segments: list[Path] = []
    serve = LocalCache.serve

    def noted(self: LocalCache, endpoint: str, workers: int = 1) -> str:
        segments.append(Path("/dev/shm", self.status()["l1"]["segment"]))
        return serve(self, endpoint, workers)

    monkeypatch.setattr(LocalCache, "serve", noted)
    with pytest.raises(ValueError, match=r"lmcache.in_process: .*cannot be opened"):
        open_cache()
    assert [each.exists() for each in segments] == [False]


def test_the_public_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "version", lambda name: "0.5.6")
    with pytest.raises(ValueError, match=r"this environment has the public package, lmcache 0\.5\.6"):
        open_cache()


def test_a_server_beside_it_is_refused() -> None:
    for where in ({"lmcache.url": "tcp://127.0.0.1:5555"}, {"lmcache.port": 5555}, {"lmcache.mp.host": "a"}):
        with pytest.raises(ValueError, match=r"beside 'lmcache\.in_process', which has no server: give one of them"):
            Settings.of({"lmcache.in_process": True, **where})


def test_a_role_is_that_of_the_cache_and_of_the_connector() -> None:
    opened = open_cache({**PD, "pd_peer_init_port": free_port()})
    try:
        assert {"p2p", "fleet_member"} <= {*opened._served.cache.status()["services"]}
        assert "handoffs" in opened._served.cache.status()["modules"]
        applied = opened.applied(Settings(in_process=True), {})
        assert (applied.pd_role, applied.save_tail) == ("producer", True)
        with EngineChannel(endpoint_of("engine")) as channel:
            hello = channel.hello("test")
        assert hello is not None
        assert HANDOFF_WAIT.name in hello.operations
    finally:
        opened.close()


def test_the_connectors_own_keys_turn_it_on_as_well() -> None:
    extra = {"lmcache.in_process": True, "lmcache.pd_role": "receiver", "lmcache.blend": "requests"}
    own, overrides = split(extra)
    assert own == extra
    assert overrides == {"enable_pd": True, "pd_role": "receiver", "enable_blending": True}
    assert split({**extra, "lmcache.pd_role": "none", "lmcache.blend": "off"})[1] == {}


def test_an_address_for_a_proxy_needs_a_role(cache: InProcessCache) -> None:
    settings = Settings.of({"lmcache.in_process": True, "lmcache.engine_url": "http://127.0.0.1:8100"})
    with pytest.raises(ValueError, match=r"'lmcache\.engine_url' has no effect without a role"):
        cache.applied(settings, {})


def test_blending_of_the_configuration_is_the_connectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra: dict[str, Any] = {"lmcache.in_process": True, "lmcache.blend_min_tokens": 64}
    here = Settings.of(extra)
    assert with_blending(here, extra, {}) is here
    file = tmp_path / "lmcache.yaml"
    file.write_text("enable_blending: true\nuse_layerwise: true\nblend_check_layers: 1\nblend_recompute_ratios: 0.2\n")
    monkeypatch.setenv("LMCACHE_CONFIG_FILE", str(file))
    blends = with_blending(here, extra, {})
    assert (blends.blend, blends.blend_min_tokens, blends.blend_special_str) == ("all", 64, " # # ")
    assert (blends.blend_check_layers, blends.blend_recompute_ratios) == ((1,), (0.2,))
    assert not is_layerwise(extra), "the passes of blends have steps of their own"
    extra["lmcache.blend"] = "requests"
    assert with_blending(Settings.of(extra), extra, split(extra)[1]).blend == "requests"
    file.write_text("enable_blending: [\n")
    assert with_blending(here, extra, {}) is here, "that is said when the cache is opened"


def test_layer_by_layer_is_known_before_the_cache_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_layerwise({})
    assert not is_layerwise({"lmcache.in_process": True})
    assert is_layerwise({"lmcache.layerwise": True})
    assert is_layerwise({"lmcache.in_process": True, "lmcache.use_layerwise": True})
    monkeypatch.setenv("LMCACHE_USE_LAYERWISE", "true")
    assert is_layerwise({"lmcache.in_process": True})
    assert not is_layerwise({"lmcache.in_process": True, "lmcache.layerwise": False})
    assert not is_layerwise({})
    monkeypatch.setenv("LMCACHE_CONFIG_FILE", str(tmp_path / "nowhere"))
    assert not is_layerwise({"lmcache.in_process": True}), "that is said when the cache is opened"


def test_an_end_that_takes_too_long_says_what_is_lost(
    cache: InProcessCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given: list[float] = []
    close = cache._served.cache.close

    def close_late(seconds: float) -> bool:
        given.append(seconds)
        close(0.0)
        return False

    monkeypatch.setattr(cache._served.cache, "close", close_late)
    with caplog.at_level(logging.WARNING):
        cache.close()
    assert given[0] + STOP_SECONDS < VLLM_WAITS_SECONDS, "a worker of this process may have taken as much"
    assert "before all chunks were written" in caplog.text
