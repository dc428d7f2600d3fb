"""What adapters are compared with moves the same bytes, and leaves no trace."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lmcache_client.errors import ConfigError, ResourceError
from lmcache_core.app.adapter_specs import adapter_spec
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.l1.arena import SHM_ROOT
from lmcache_tools.bench.baseline import Baseline, baseline
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.io_engine import io_library
from lmcache_tools.bench.lane import BenchFailedError
from lmcache_tools.bench.medium import file_medium
from lmcache_tools.bench.medium_lane import MediumLane, medium_lane
from lmcache_tools.bench.memory import BenchMemory, bench_memory, require_memory
from lmcache_tools.bench.objects import BenchObjects
from lmcache_tools.bench.open_baseline import open_baseline
from lmcache_tools.bench.traffic import Traffic
from lmcache_tools.machine import Machine
from plugins.tools.tests.bench.test_plan import plan

COUNT, SIZE, STRIDE = 6, 3 * 4096 + 100, 4 * 4096
PLAN = plan(sizes=(SIZE,), depths=(4,), pass_bytes=COUNT * SIZE, shares=(0, 50, 100))


@pytest.fixture
def memory() -> Iterator[BenchMemory]:
    with bench_memory(COUNT * STRIDE) as borrowed:
        yield borrowed


@pytest.fixture
def undo(memory: BenchMemory) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def round_trip(lane: MediumLane, memory: BenchMemory, rounds: int = 2) -> None:
    """Stores, loads and mixes, every byte compared."""
    made = BenchObjects(memory.arena.region, SIZE, STRIDE, COUNT)
    traffic = Traffic(4, 10.0, Interruption())
    for _ in range(rounds):
        made.renew()
        for steps in (made.stores, made.mixed(50), made.loads):
            taken = steps()
            assert traffic.run(lane, taken) is not None
            assert not list(made.wrong(taken))
        lane.clear()


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize("is_fresh", [False, True])
def test_a_file_brings_everything_back_and_has_no_name(
    is_direct: bool, is_fresh: bool, tmp_path: Path, memory: BenchMemory, undo: ExitStack
) -> None:
    opened = open_baseline("x", Baseline(tmp_path, is_direct, is_fresh), PLAN, memory, undo)
    assert opened.lane is not None
    round_trip(opened.lane, memory)
    assert not list(tmp_path.iterdir())
    assert str(tmp_path) in opened.describes
    assert "engine" in opened.describes


def test_memory_brings_everything_back(memory: BenchMemory, undo: ExitStack) -> None:
    opened = open_baseline("x", Baseline(), PLAN, memory, undo)
    assert opened.lane is not None
    round_trip(opened.lane, memory)
    assert opened.describes.startswith("a copy from memory to memory")


def test_where_no_file_can_be_unnamed_its_name_is_taken_away_at_once(
    tmp_path: Path, memory: BenchMemory, undo: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuses(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, "none here")
        return real(path, flags, mode)

    monkeypatch.setattr("lmcache_tools.bench.medium.os.open", refuses)
    opened = open_baseline("x", Baseline(tmp_path, is_fresh=True), PLAN, memory, undo)
    assert opened.lane is not None
    assert not list(tmp_path.iterdir())
    round_trip(opened.lane, memory)


def test_a_directory_that_takes_no_file_is_an_error_that_names_it(memory: BenchMemory, undo: ExitStack) -> None:
    with pytest.raises(ResourceError, match="'/proc' to compare with"):
        open_baseline("x", Baseline(Path("/proc")), PLAN, memory, undo)


def test_what_the_disk_says_is_what_is_said(tmp_path: Path, memory: BenchMemory, undo: ExitStack) -> None:
    library = io_library()
    assert not isinstance(library, str)
    medium = undo.enter_context(file_medium(library, tmp_path, False, False))
    lane = undo.enter_context(medium_lane("medium of x", medium, library.engine("threads", 2, 4, 1 << 20), memory))
    made = BenchObjects(memory.arena.region, SIZE, STRIDE, COUNT)
    made.renew()
    traffic = Traffic(2, 10.0, Interruption())
    traffic.run(lane, made.stores())
    os.ftruncate(medium._descriptor, SIZE)  # as a disk that lost what it had
    with pytest.raises(BenchFailedError, match=r"medium of x: load of an object of 12\.1 KiB: "):
        traffic.run(lane, made.loads())


class HungEngine:
    """Has not given its memory back when it is closed."""

    kind = "hung"

    def register_file(self, fd: int) -> bool:
        return False

    def close(self, seconds: float) -> bool:
        return False


def test_memory_that_an_engine_may_still_write_to_stays_mapped_and_loses_its_name(tmp_path: Path) -> None:
    library = io_library()
    assert not isinstance(library, str)
    with bench_memory(1 << 20) as memory:
        with (
            file_medium(library, tmp_path, False, False) as medium,
            medium_lane("x", medium, HungEngine(), memory),  # type: ignore[arg-type]
        ):
            pass
        assert memory.is_borrowed
    memory.arena.region.view[0] = 7
    assert memory.arena.segment is not None
    assert not (SHM_ROOT / memory.arena.segment).exists()
    memory.arena.close()


def test_without_the_engine_nothing_is_measured_and_it_says_why(
    memory: BenchMemory, undo: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> object:
        raise ImportError(f"no {name}")

    monkeypatch.setattr("lmcache_tools.bench.io_engine.import_module", missing)
    opened = open_baseline("x", Baseline(), PLAN, memory, undo)
    assert opened.lane is None
    assert "pip install lmcache-native" in opened.describes


def test_another_engine_than_this_core_knows_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later:
        IO_ABI = 99

    monkeypatch.setattr("lmcache_tools.bench.io_engine.import_module", lambda name: Later)
    assert "version 99" in str(io_library())


def test_memory_that_is_not_there_is_not_allocated(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemAvailable: 1048576 kB\n")
    machine = Machine(root=tmp_path)
    require_memory(700 << 20, machine)
    with pytest.raises(ResourceError, match=r"800 MiB more memory, and this machine has 1 GiB"):
        require_memory(800 << 20, machine)


ADAPTERS = """
    from pathlib import Path
    from lmcache_core import Offer, PluginSettings, StorageFacts, hookimpl

    class Files(PluginSettings):
        where: Path
        direct: bool = False

    class Device(PluginSettings):
        disk: Path
        direct: bool = True
        engine: str = "posix"

    class Remote(PluginSettings):
        endpoint: str

    @hookimpl
    def lmcache_l2_adapters():
        return [
            Offer("files", "f", "acme_plugin:x", "acme_plugin:Files",
                  storage=StorageFacts(folders=("where",), direct_io="direct")),
            Offer("device", "d", "acme_plugin:x", "acme_plugin:Device",
                  storage=StorageFacts(devices=("disk",), direct_io="direct", io_engine="engine")),
            Offer("remote", "r", "acme_plugin:x", "acme_plugin:Remote"),
        ]
    """


def test_the_medium_is_read_from_the_settings_of_any_adapter(tmp_path: Path, install: object) -> None:
    install("acme", ADAPTERS)  # type: ignore[operator]
    plugins = load_plugins(("acme", "builtin"), ())
    image = tmp_path / "image"
    image.touch()

    def of(values: dict[str, object], asked: str = "auto") -> Baseline:
        return baseline(adapter_spec(values, plugins, "x", ()), asked)

    files: dict[str, object] = {"type": "files", "where": str(tmp_path)}
    device: dict[str, object] = {"type": "device", "disk": str(image)}
    assert of(files) == Baseline(tmp_path, False, True)
    assert of({**files, "direct": True}) == Baseline(tmp_path, True, True)
    assert of(device) == Baseline(tmp_path, True, False, "threads")
    assert of({**device, "engine": "io_uring"}).engine == "io_uring"
    assert of({"type": "memory"}) == Baseline()
    assert "endpoint" not in str(of({"type": "remote", "endpoint": "e"}).reason)
    assert "--medium" in str(of({"type": "remote", "endpoint": "e"}).reason)
    assert of({"type": "remote", "endpoint": "e"}, str(tmp_path)) == Baseline(tmp_path, False, True)
    assert of(files, "none").reason == "not asked for"
    assert of(files, "memory") == Baseline()
    with pytest.raises(ConfigError, match="is not a directory"):
        of(files, str(image))


def test_a_device_is_never_written_to_beside_its_adapter(tmp_path: Path, install: object) -> None:
    install("acme", ADAPTERS)  # type: ignore[operator]
    plugins = load_plugins(("acme",), ())
    for path in ("/dev/null", str(tmp_path / "missing")):
        spec = adapter_spec({"type": "device", "disk": path}, plugins, "x", ())
        found = baseline(spec, "auto")
        assert found.folder is None
        assert "the adapter's own" in str(found.reason)
        assert baseline(spec, str(tmp_path)) == Baseline(tmp_path, True, False, "threads")
