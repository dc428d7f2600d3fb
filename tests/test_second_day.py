"""What goes wrong on an operator's second day, a row each: health, status, metric, alert and log say it within seconds,
nothing else is said, and all of it ends when the fault ends.  A control group that is too small for L1, with which no server
starts, is in test_memory_limit.py."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from msgspec.structs import replace

from libs.object_files.tests.stored import of_version
from lmcache_core import JobDone, JobId, Outcome
from lmcache_core.app import server_conditions
from lmcache_core.app.build import build
from lmcache_core.app.cli import main
from lmcache_core.app.configuration import read_settings
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_core.controllers import adapter_conditions, supervisor
from lmcache_core.controllers.conditions import RecentGrowth
from lmcache_core.events import subscriber_calls
from lmcache_core.l1 import arena
from lmcache_devkit import fake_engine, free_port
from lmcache_devkit.fake_engine import FakeEngine
from lmcache_sidecar import program
from tests.media_faults.adapters import MADE
from tests.media_faults.medium import cued_medium, small_file_system
from tests.remote.backends import running
from tests.remote.tcp_proxy import Nothing, Refuse, TcpProxy

SAID_SECONDS: Final = 15.0
OVER_SECONDS: Final = 45.0
"""More than a circuit breaker pauses after an outage of some seconds."""
MINUTE_SECONDS: Final = 4.0
"""What these servers take for a minute, so that the rows are quick."""
CHUNKS: Final = 6
ROOT: Final = Path(__file__).parent.parent
ALERTS: Final = (ROOT / "deploy/prometheus/alerts.yml").read_text()
RUNBOOKS: Final = (ROOT / "docs/operate/runbooks.md").read_text()
LISTED: Final = (ROOT / "docs/reference/conditions.md").read_text()


class Site:
    """A server in this process, and an engine that goes on working."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, exits: ExitStack) -> None:
        self.folder, self.patch, self.exits = folder, patch, exits
        self.requests = 0
        self.works = True

    def start(self, **settings: Any) -> None:
        self.port = free_port()
        defaults = {
            "host": "127.0.0.1", "port": free_port(), "chunk_size": 16, "l1_size_gb": 1 / 16, "http_port": self.port,
            "prometheus_port": 0, "shm_name": f"test-{uuid.uuid4().hex}", "l2_timeout_seconds": 1.0,
        }  # fmt: skip
        plugins = load_plugins()
        self.server: Server = build(read_settings({**defaults, **settings}, plugins), plugins)
        self.exits.callback(self.server.stop, 1.0)
        self.server.start()
        self.parts = self.server._parts
        self.engine = self.exits.enter_context(FakeEngine(self.server.info.engine_endpoint))
        wait_for(lambda: self.health() != (0, ""))

    def work(self) -> None:
        """One more request: a prompt that is new, and one that went to L2."""
        if not self.works:
            return
        self.requests += 1
        for number in (self.requests, self.requests - 1):
            tokens, request = [number, *range(1, CHUNKS * 16)], f"{self.requests} {number}"
            self.engine.lookup(tokens, request)
            self.engine.store(tokens, request)
            self.engine.end(request)
        self.engine.scheduler.clear()
        self.parts.tiers.eviction.wake()  # which tells its policy of what happened

    @property
    def adapter(self) -> Any:
        return self.parts.tiers.l2.clients[0].adapter

    @property
    def l2(self) -> Path:
        return self.folder / "medium" / "l2"

    # --- what an operator sees

    def health(self) -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/healthcheck", timeout=5) as answer:
                return answer.status, json.load(answer)["status"]
        except HTTPError as error:
            with error:
                return error.code, json.load(error)["status"]
        except URLError:
            return 0, ""

    def status(self) -> dict[str, Any]:
        with urlopen(f"http://127.0.0.1:{self.port}/status", timeout=5) as answer:
            return dict(json.load(answer))

    def conditions(self) -> dict[str, dict[str, Any]]:
        return {f"{each['name']} {each['subject']}": each for each in self.status()["conditions"]}

    def metric(self) -> set[tuple[str, ...]]:
        """Name, severity and subject of what is scraped."""
        with urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        rows = re.findall(r"^lmcache_condition\{([^}]*)\} 1", text, re.MULTILINE)
        labels = [dict(re.findall(r'(\w+)="([^"]*)"', row)) for row in rows]
        return {(row["name"], row["severity"], row["subject"]) for row in labels}


def wait_for(check: Callable[[], object], seconds: float = SAID_SECONDS, work: Callable[[], object] = int) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        work()
        time.sleep(0.1)


# --- faults: each starts a server, yields to the test while the fault is there, and repairs it


Fault = Callable[[Site], AbstractContextManager[None]]


def fails(*_: object, **__: object) -> NoReturn:
    raise ValueError("injected")


def on_medium(adapter: str, kind: str, error: str) -> Fault:
    """Operations of this kind end with an errno."""

    @contextmanager
    def fault(site: Site) -> Iterator[None]:
        medium = site.exits.enter_context(cued_medium(site.folder))
        site.start(l2_adapter=(MADE[adapter](medium.root),))
        begin(site)
        medium.fail(kind, error)
        yield
        medium.repair()

    return fault


def begin(site: Site) -> None:
    """All is well, with objects in L2."""
    for _ in range(3):
        site.work()
    time.sleep(1.2)  # the thread that collects has looked
    assert site.health() == (200, "healthy"), site.conditions()
    assert site.conditions() == {}


def files(site: Site, **settings: Any) -> None:
    (site.folder / "medium").mkdir()
    site.start(l2_adapter=({"type": "fs", "base_path": str(site.l2), **settings},))
    begin(site)


@contextmanager
def gone(site: Site) -> Iterator[None]:
    files(site)
    away = site.l2.rename(site.folder / "away")
    yield
    away.rename(site.l2)


@contextmanager
def replaced(site: Site) -> Iterator[None]:
    files(site)
    away = site.l2.rename(site.folder / "away")
    site.l2.mkdir()
    yield
    shutil.rmtree(site.l2)
    away.rename(site.l2)


@contextmanager
def tmpfs_full(site: Site) -> Iterator[None]:
    root = site.exits.enter_context(small_file_system(site.folder, 4 << 20))
    site.start(l2_adapter=({"type": "fs", "base_path": str(root / "l2")},))
    begin(site)
    filler = root / "filler"
    with filler.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, os.statvfs(root).f_bavail * 4096)
    yield
    filler.unlink()


@contextmanager
def capacity_reached(site: Site) -> Iterator[None]:
    (site.folder / "medium").mkdir()
    site.start(l2_adapter=({"type": "fs", "base_path": str(site.l2), "max_capacity_gb": 200_000 / 2**30},))
    yield
    site.patch.setattr(site.adapter._files._index.room, "capacity_bytes", 1 << 40)


@contextmanager
def backend_raises(site: Site) -> Iterator[None]:
    files(site)
    with site.patch.context() as patch:
        patch.setattr(site.adapter, "store", fails)
        yield


@contextmanager
def backend_flaps(site: Site) -> Iterator[None]:
    site.start(l2_adapter=({"type": "memory"},))
    begin(site)
    store = site.adapter.store
    with site.patch.context() as patch:
        patch.setattr(
            site.adapter, "store", lambda key, buffer: fails() if key.chunk_hash[0] < 64 else store(key, buffer)
        )
        yield


@contextmanager
def backend_hangs(site: Site) -> Iterator[None]:
    site.start(l2_adapter=({"type": "fault_inject", "inner": {"type": "memory"}},))
    begin(site)
    stalled: list[int] = []

    def stall(batch: Sequence[object]) -> int:
        stalled.append(len(batch))
        return -len(stalled)

    with site.patch.context() as patch:
        patch.setattr(site.adapter, "submit_store", stall)
        yield
    queue = site.adapter.completions()
    done = [JobDone(JobId(-number), (Outcome.FAILED,) * size, released=True) for number, size in enumerate(stalled, 1)]
    drain = queue.drain
    site.patch.setattr(queue, "drain", lambda: [*(done.pop() for _ in range(len(done))), *drain()])
    site.parts.completions.look_again()


def policy(seat: Callable[[Site], Any], method: str, **settings: Any) -> Fault:
    @contextmanager
    def fault(site: Site) -> Iterator[None]:
        site.start(**{"l2_adapter": ({"type": "memory"},), **settings})
        begin(site)
        with site.patch.context() as patch:
            patch.setattr(seat(site).policy, method, fails)
            yield
        seat(site).take(seat(site).policy)  # an operator sets a policy again

    return fault


@contextmanager
def subscriber_raises(site: Site) -> Iterator[None]:
    site.start()
    begin(site)
    queue = site.parts.common.bus.queue_of("recent_events")
    with site.patch.context() as patch:
        patch.setattr(queue._calls._subscriber, "batch_done", fails)
        yield


@contextmanager
def thread_down(site: Site) -> Iterator[None]:
    site.patch.setattr(supervisor, "BACKOFF_FIRST_SECONDS", 8.0)
    site.start()
    begin(site)
    with site.patch.context() as patch:
        patch.setattr(site.parts.tiers.eviction, "cycle", fails)
        site.parts.tiers.eviction.wake()
        yield


@contextmanager
def no_memory(site: Site) -> Iterator[None]:
    """As where /dev/shm is smaller than L1."""
    site.patch.setattr(arena, "RETRY_SECONDS", 1.0)
    site.start()
    begin(site)
    with site.patch.context() as patch:
        patch.setattr(site.parts.tiers.arena, "grow", lambda end, step: None)
        site.parts.preallocation._requested.set()
        yield


def use_shared_memory(site: Site, size_bytes: int) -> Path:
    """A file system of this size, instead of /dev/shm."""
    root = site.exits.enter_context(small_file_system(site.folder, size_bytes))
    for module in (arena, fake_engine):
        site.patch.setattr(module, "SHM_ROOT", root)
    return root


@contextmanager
def shared_memory_small(site: Site) -> Iterator[None]:
    """As in a container without --shm-size.  An operator enlarges it, and starts the server again."""
    root = use_shared_memory(site, 16 << 20)
    site.start()
    yield
    assert site.server.stop(1.0)
    enlarged = subprocess.run(["mount", "-o", "remount,size=128m", str(root)], capture_output=True, check=False)
    assert enlarged.returncode == 0, enlarged.stderr
    site.start()


@contextmanager
def shared_memory_used_up(site: Site) -> Iterator[None]:
    """By another program, after the start."""
    site.patch.setattr(arena, "RETRY_SECONDS", 1.0)
    root = use_shared_memory(site, 128 << 20)
    site.start(l1_init_size_gb=1 / 128)
    begin(site)
    filler = root / "filler"
    with filler.open("wb", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, os.statvfs(root).f_bavail * 4096)
    for number in range(60):  # more than was allocated ahead
        site.engine.store([number, *range(500, 500 + 320)], f"fill {number}")
    yield
    filler.unlink()


@contextmanager
def l1_overwritten(site: Site) -> Iterator[None]:
    """By another engine of the server's user."""
    site.start(l1_verify_reads=True)
    begin(site)
    tokens = [0, *range(7, 7 + CHUNKS * 16)]
    site.engine.store(tokens, "victim")
    segment, content = site.engine.segment, site.engine.content(tokens, 1)
    assert segment is not None
    segment[segment.find(content) + 1000] ^= 1
    assert site.engine.lookup(tokens, "reader") == CHUNKS
    assert site.engine.retrieve(tokens, "reader") is None
    site.engine.end("reader")
    yield


def backend_away(name: str) -> Fault:
    """A real one that refuses connections for a while."""

    @contextmanager
    def fault(site: Site) -> Iterator[None]:
        backend = site.exits.enter_context(running(name, site.folder))
        proxy = site.exits.enter_context(TcpProxy(backend.port))
        site.start(l2_adapter=(backend.through(proxy.port),))
        begin(site)
        proxy.switch(Refuse())
        yield
        proxy.switch(Nothing())

    return fault


@contextmanager
def program_ends(site: Site) -> Iterator[None]:
    program = site.folder / "exporter.sh"
    program.write_text("test -e repaired || exit 3\nsleep 1000\n".replace("repaired", str(site.folder / "repaired")))
    site.start(runtime_plugin_locations=(str(program),))
    yield
    (site.folder / "repaired").touch()


@contextmanager
def other_version(site: Site) -> Iterator[None]:
    files(site)
    for path in list(site.l2.rglob("*.kv")):
        path.write_bytes(of_version(2, path.read_bytes()))
    numbers = range(site.requests + 1)
    site.engine.scheduler.clear()
    for number in numbers:
        site.engine.lookup([number, *range(1, CHUNKS * 16)], f"again {number}")
        site.engine.end(f"again {number}")
    yield
    for number in numbers:
        site.engine.store([number, *range(1, CHUNKS * 16)], f"anew {number}")


@contextmanager
def objects_damaged(site: Site) -> Iterator[None]:
    """Bits on the medium are not what they were."""
    files(site)
    for path in site.l2.rglob("*.kv"):
        with path.open("r+b") as file:
            file.seek(-100, os.SEEK_END)
            byte = file.read(1)
            file.seek(-100, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
    site.engine.scheduler.clear()
    site.engine.lookup([1, *range(1, CHUNKS * 16)], "damaged")
    site.engine.end("damaged")
    yield


def other_settings(**settings: Any) -> Fault:
    """What is there was stored by a server with these, and this one has none of it."""

    @contextmanager
    def fault(site: Site) -> Iterator[None]:
        (site.folder / "medium").mkdir()
        adapter = {"type": "fs", "base_path": str(site.l2)}
        site.start(l2_adapter=(adapter,), **settings)
        with FakeEngine(site.server.info.engine_endpoint) as engine:
            engine.store(list(range(1, 161)))
        assert site.server.stop(5.0)
        site.works = False
        site.start(l2_adapter=(adapter,))
        yield
        site.works = True

    return fault


@contextmanager
def refused(site: Site) -> Iterator[None]:
    """An engine asks for a model whose name no object has room for."""
    site.start()
    begin(site)
    key = replace(site.engine.key([1, 2, 3], "r", 0, 3, of_worker=False), model_name="m" * 4096)
    site.engine.scheduler.lookup(key)
    yield


@contextmanager
def http_at_the_engine_port(site: Site) -> Iterator[None]:
    """As a web page sends it, or a probe that is set to the wrong port."""
    site.start()
    begin(site)
    port = int(site.server.info.engine_endpoint.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with suppress(ConnectionResetError):  # it is closed with bytes unread
            client.recv(64)
    yield


@contextmanager
def forbidden(site: Site) -> Iterator[None]:
    site.start()
    begin(site)
    handshakes = site.parts.engine_port.handshakes
    assert handshakes
    before = handshakes.counters
    with site.patch.context() as patch:
        patch.setattr(type(handshakes), "counters", replace(before, forbidden=2))
        yield
    site.patch.setattr(type(handshakes), "counters", replace(before, forbidden=2))


class Row(NamedTuple):
    fault: Fault
    says: str
    """Name and subject of a condition, which is there; others may be, of the same subject or severity `info`."""
    severity: str = "warning"
    slow: bool = False
    ends_with_restart: bool = False
    also_said: str = ""
    """How a line of the log begins that says what the condition does not: which connection, object or user."""


FS, NATIVE = "fs", "fs_native, threads"
ROWS: Final[Mapping[str, Row]] = {
    "disk full": Row(on_medium(FS, "growth", "ENOSPC"), "medium_full adapter fs"),
    "disk full, native": Row(on_medium(NATIVE, "growth", "ENOSPC"), "medium_full adapter fs_native", slow=True),
    "tmpfs full": Row(tmpfs_full, "medium_full adapter fs"),
    "quota used up": Row(on_medium(FS, "growth", "EDQUOT"), "medium_full adapter fs", slow=True),
    "read-only": Row(on_medium(FS, "changes", "EROFS"), "medium_read_only adapter fs"),
    "read-only, native": Row(on_medium(NATIVE, "changes", "EROFS"), "medium_read_only adapter fs_native", slow=True),
    "permissions lost": Row(on_medium(FS, "changes", "EACCES"), "medium_denied adapter fs"),
    "disk dies": Row(on_medium(FS, "all", "EIO"), "medium_broken adapter fs", slow=True),
    "stale handle": Row(on_medium(FS, "all", "ESTALE"), "medium_broken adapter fs", slow=True),
    "device dies": Row(on_medium("raw_block, threads", "all", "EIO"), "adapter_paused adapter raw_block", slow=True),
    "directory gone": Row(gone, "medium_gone adapter fs"),
    "directory replaced": Row(replaced, "medium_replaced adapter fs"),
    "capacity reached": Row(capacity_reached, "adapter_refuses adapter fs"),
    "backend raises": Row(backend_raises, "adapter_paused adapter fs"),
    "backend flaps": Row(backend_flaps, "adapter_jobs_fail adapter memory"),
    "backend hangs": Row(backend_hangs, "adapter_silent adapter fault_inject"),
    "store policy raises": Row(
        policy(lambda site: site.parts.tiers.store.guarded, "plan"), "policy_replaced store policy"
    ),
    "prefetch policy raises": Row(
        policy(lambda site: site.parts.tiers.prefetch.guarded, "plan"), "policy_replaced prefetch policy"
    ),
    "eviction policy raises": Row(
        policy(lambda site: site.parts.tiers.eviction.guarded, "on_insert"), "policy_replaced eviction policy"
    ),
    "subscriber raises": Row(subscriber_raises, "subscriber_fails subscriber recent_events"),
    "thread down": Row(thread_down, "thread_down thread eviction", "critical"),
    "no memory for L1": Row(no_memory, "l1_memory_short L1"),
    "small shared memory": Row(
        shared_memory_small, "l1_not_shared L1", ends_with_restart=True, also_said="l1 is not shared memory"
    ),
    "shared memory used up": Row(shared_memory_used_up, "l1_memory_short L1"),
    "L1 overwritten": Row(l1_overwritten, "l1_objects_overwritten L1", also_said="l1 dropped objects"),
    "redis gone": Row(backend_away("redis"), "adapter_jobs_fail adapter redis"),
    # where it is away for as long as an owner's record waits, that is said, too: another server may take the bucket
    "s3 gone": Row(backend_away("s3"), "adapter_jobs_fail adapter s3", also_said="s3: bucket 'kvcache' at "),
    "program ends": Row(program_ends, "program_fails service sidecar, program exporter.sh"),
    "objects damaged": Row(
        objects_damaged, "adapter_objects_damaged adapter fs", also_said="objects rejected, not served"
    ),
    "other chunk size": Row(other_settings(chunk_size=32), "objects_do_not_fit adapter fs"),
    "other hash": Row(other_settings(hash_algorithm="sha256_cbor"), "objects_do_not_fit adapter fs"),
    "requests refused": Row(refused, "requests_refused engine port", "info", also_said="request refused "),
    "http at the engine port": Row(http_at_the_engine_port, "handshakes_refused engine port", "info"),
    "engine of another user": Row(forbidden, "engines_forbidden engine port"),
    "other format version": Row(
        other_version, "objects_of_other_version adapter fs", "info", also_said="objects rejected"
    ),
}
STATES: Final = {"info": (200, "healthy"), "warning": (200, "degraded"), "critical": (503, "unhealthy")}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    minute = partial(RecentGrowth, seconds=MINUTE_SECONDS)
    monkeypatch.setattr(server_conditions, "RecentGrowth", minute)
    monkeypatch.setattr(adapter_conditions, "RecentGrowth", lambda clock, seconds=0.0: minute(clock))
    monkeypatch.setattr(subscriber_calls, "RECENT_SECONDS", MINUTE_SECONDS)
    monkeypatch.setattr(program, "RECENT_SECONDS", MINUTE_SECONDS)
    monkeypatch.setattr(server_conditions, "AGAIN_SECONDS", MINUTE_SECONDS)
    with ExitStack() as exits:
        yield Site(tmp_path, monkeypatch, exits)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if row.slow else name for name, row in ROWS.items()]
)
def test_a_fault_is_said_everywhere_and_is_over_when_it_is_repaired(
    site: Site, name: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ROWS[name]
    condition = row.says.partition(" ")[0]
    subject = row.says.partition(" ")[2]
    caplog.set_level(logging.INFO, "lmcache_core.controllers.conditions")
    with row.fault(site):
        wait_for(lambda: row.says in site.conditions(), work=site.work)
        active = site.conditions()
        assert active[row.says]["severity"] == row.severity
        assert active[row.says]["reason"]
        assert active[row.says]["remedy"]
        assert time.time() - active[row.says]["since"] < SAID_SECONDS
        others = [each for key, each in active.items() if key != row.says]
        assert not [each for each in others if each["severity"] != "info" and each["subject"] != subject], "a false one"
        assert not {"thread_down", "thread_restarted"} <= {each["name"] for each in active.values()}
        assert site.health() == STATES[row.severity]
        assert (condition, row.severity, subject) in site.metric()
        assert row.severity == "info" or alert(row.severity) in RUNBOOKS
        assert f"* `{condition}` (" in LISTED
        assert f"condition began name={condition} subject={subject} " in caplog.text
        assert main(["status", "--url", f"http://127.0.0.1:{site.port}"]) == (row.severity != "info")
        assert condition in capsys.readouterr().out
    wait_for(lambda: site.conditions() == {}, OVER_SECONDS, site.work)
    assert site.health() == STATES["info"]
    assert site.metric() == set()
    assert row.ends_with_restart or f"condition ended name={condition} subject={subject} " in caplog.text
    assert [line for line in said_twice(caplog.records) if not (row.also_said and line.startswith(row.also_said))] == []
    assert main(["status", "--url", f"http://127.0.0.1:{site.port}"]) == 0


def said_twice(records: Sequence[logging.LogRecord]) -> list[str]:
    """Warnings beside the beginning of a condition, but for those that show where something was raised."""
    own = "lmcache_core.controllers.conditions"
    return [
        record.getMessage()
        for record in records
        if record.levelno >= logging.WARNING and record.name != own and not record.exc_info
    ]


def alert(severity: str) -> str:
    """The heading of the runbook of the alert that fires for conditions of this severity."""
    (found,) = re.findall(rf'alert: (\w+)\n\s+expr: lmcache_condition{{severity="{severity}"}} == 1', ALERTS)
    return f"## {found}\n"


# --- what is in order


def evicts(site: Site) -> None:
    """Every `fs` with an eviction lists what it holds, once, and is done."""
    files(site, eviction={"eviction_policy": "LRU"}, max_capacity_gb=1.0)


def no_home(site: Site) -> None:
    site.patch.delenv("HOME", raising=False)
    site.start(l2_adapter=({"type": "memory"},))


def slow_clients(site: Site) -> None:
    site.start()
    for _ in range(300):
        client = site.exits.enter_context(socket.create_connection(("127.0.0.1", site.port), timeout=5))
        client.sendall(b"GET /healthcheck HT")


def adapter_removed(site: Site) -> None:
    """While its directory is gone: its conditions go with it."""
    files(site)
    shutil.rmtree(site.l2)
    wait_for(lambda: "medium_gone adapter fs" in site.conditions())
    site.parts.adapters.remove("fs", 5.0, force=True)
    wait_for(lambda: site.conditions() == {})


def worker_leaves(site: Site) -> None:
    site.start(l2_adapter=({"type": "memory"},))
    with FakeEngine(site.server.info.engine_endpoint) as engine:
        engine.store(list(range(1, 97)))


def full_l1(site: Site) -> None:
    """More is stored than L1 holds: that is what eviction is for."""
    site.start(l1_size_gb=1 / 512, l2_adapter=({"type": "memory"},))
    for number in range(40):
        site.engine.store([number, *range(1, 320)], f"fill {number}")


QUIET: Final[Sequence[Callable[[Site], None]]] = [
    evicts, no_home, slow_clients, adapter_removed, worker_leaves, full_l1,
]  # fmt: skip


@pytest.mark.parametrize("order", QUIET)
def test_a_healthy_server_raises_no_alarm(site: Site, order: Callable[[Site], None]) -> None:
    order(site)
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert site.health() == (200, "healthy"), site.conditions()
        site.work()
        time.sleep(0.1)
    assert [each for each in site.conditions().values() if each["severity"] != "info"] == []


def test_a_server_that_was_frozen_reports_nothing(site: Site) -> None:
    """As after SIGSTOP, or a host that was suspended: no thread ran for a while."""
    site.start(l2_adapter=({"type": "memory"},))
    begin(site)
    pid = os.fork()
    if not pid:
        import signal

        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(3)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.waitpid(pid, 0)
    for _ in range(10):
        site.work()
        assert site.health() == (200, "healthy"), site.conditions()
