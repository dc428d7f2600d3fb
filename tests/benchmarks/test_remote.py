"""The remote benchmark: what is asked for, checked sides, a backend that fails, a whole small run, and the page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from benchmarks import remote
from benchmarks.bare_redis import bare_redis
from benchmarks.l2_cell import Cell, Speed
from benchmarks.l2_lane import Runner, opened
from benchmarks.l2_pairs import partner_of
from benchmarks.peer import BenchmarkError
from benchmarks.remote_public import NAME as BATCHES
from benchmarks.remote_sides import Proven, ServedLane
from benchmarks.remote_subjects import SUBJECTS, Backend, Load, Subject
from benchmarks.remote_table import ROWS, page
from benchmarks.report import PAGE, replaced, wrapped
from benchmarks.results import Results, load
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.lane import Step
from lmcache_tools.bench.memory import BenchMemory, bench_memory
from lmcache_tools.bench.objects import BenchObjects
from tests.remote.redis_servers import HOST, redis_server

MIB = 1 << 20
COUNT = 4


@pytest.fixture
def memory() -> Iterator[BenchMemory]:
    with bench_memory(COUNT * MIB) as made:
        yield made


@pytest.fixture
def objects(memory: BenchMemory) -> BenchObjects:
    made = BenchObjects(memory.arena.region, MIB, MIB, COUNT)
    made.renew()
    return made


class Idle:
    """A bare client that says that it was quick, and moves nothing."""

    name = "idle"

    def run(self, steps: Sequence[Step]) -> Speed:
        return Speed(100.0, 0.0)

    def clear(self) -> None: ...


def test_a_family_of_names_is_one_word_and_an_unknown_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert remote._arguments(["--only", "s3,redis"]).only == ["s3_moto", "s3_rclone", "s3_ceph", BATCHES, "redis"]
    assert remote._arguments([]).only == [row.subject for row in ROWS]
    with pytest.raises(SystemExit):
        remote._arguments(["--only", "redis,s4"])
    assert "'s4' is not one of s3_moto, " in capsys.readouterr().err


def test_what_it_takes_of_the_machine_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        remote._arguments(["--objects", "100"])
    assert "100 objects of 4 MiB need 1600 MiB" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        remote._arguments(["--objects", "8", "--depths", "16"])
    assert "--depths are 8 at most" in capsys.readouterr().err


def test_a_bare_client_that_moves_nothing_is_found_out(objects: BenchObjects) -> None:
    side = Proven(Idle(), objects)
    side.run(objects.stores())
    with pytest.raises(BenchmarkError, match="idle: 4 objects came back wrong, the first: object "):
        side.run(objects.loads())


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_the_adapters_loads_are_checked_while_the_clock_runs(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server, ExitStack() as undo:
        settings = {"type": "redis", "host": HOST, "port": server.port}
        lane, memory = undo.enter_context(opened(settings, load_plugins((), ()), COUNT * MIB))
        made = BenchObjects(memory.arena.region, MIB, MIB, COUNT)
        made.renew()
        runner = Runner(ServedLane(lane), 2, Interruption())
        runner.run(made.stores())
        runner.run(made.loads())
        with server.client() as client:
            names = [each for each in client.keys("*") if client.type(each) == b"string" and client.strlen(each) == MIB]
            assert len(names) == COUNT
            client.setrange(names[0], MIB - 1, bytes([client.getrange(names[0], MIB - 1, MIB - 1)[0] ^ 1]))
        with pytest.raises(BenchmarkError, match="redis: load of an object of 1 MiB: damaged"):
            runner.run(made.loads())
        runner.clear()
        assert not lane.stored


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_raw_sockets_move_everything_and_name_what_they_did_not_expect(
    tmp_path: Path, memory: BenchMemory, objects: BenchObjects
) -> None:
    with redis_server(tmp_path) as server, ExitStack() as undo:
        bare = bare_redis(HOST, server.port, 2, undo)
        side = Proven(bare, objects)
        assert side.run(objects.stores()).gb_per_second > 0
        assert side.run(objects.loads()).gb_per_second > 0
        side.clear()
        with server.client() as client:
            assert not client.keys("*")
        with pytest.raises(BenchmarkError, match=r"raw sockets: the server answers b'\$-1"):
            side.run(objects.loads())
    with ExitStack() as undo, pytest.raises(BenchmarkError, match=r"raw sockets: .* cannot be reached"):
        bare_redis(HOST, server.port, 2, undo)


def broken(fault: BaseException) -> Subject:
    def start(folder: Path, load: Load) -> AbstractContextManager[Backend]:
        raise fault

    return Subject("redis", "broken", start, "raw sockets", 0.9, depths=(2,))


@pytest.mark.parametrize(
    "fault", [RuntimeError("it does not start"), pytest.skip.Exception("it does not start")], ids=["error", "skip"]
)
def test_a_backend_that_fails_is_named_and_the_others_are_measured(
    fault: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nixl_like = next(subject for subject in SUBJECTS if subject.name == "nixl_store")
    monkeypatch.setattr(remote, "SUBJECTS", (broken(fault), memory_subject(nixl_like)))
    given = ["--only", "redis,nixl", "--size", "1", "--objects", "4", "--depths", "2", "--rounds", "1"]
    results = remote.measured(remote._arguments([*given, "--folder", str(tmp_path), "--results", str(tmp_path)]))
    assert results.failures == ["redis, 2 in flight: it does not start"]
    (kept,) = tmp_path.glob("*-remote.json")
    assert json.loads(kept.read_text())["failures"] == results.failures
    cell = Cell(remote.MODE, 1, 2, "load")
    assert results.ratios(cell.figure("gb_per_s"), "nixl_store", partner_of("nixl_store", "copy"))
    assert page(load(kept)) == page(results)


class Copy:
    """Keeps what it is given, and gives it back."""

    name = "copy"

    def __init__(self) -> None:
        self._kept: dict[bytes, bytes] = {}

    def run(self, steps: Sequence[Step]) -> Speed:
        for step in steps:
            if step.verb.value == "store":
                self._kept[step.key.object_id] = bytes(step.buffer.view)
            else:
                step.buffer.view[:] = self._kept[step.key.object_id]
        return Speed(1.0, 1.0)

    def clear(self) -> None:
        self._kept.clear()


def memory_subject(model: Subject) -> Subject:
    """In the place of another, the adapter that keeps objects in memory."""

    @contextmanager
    def start(folder: Path, load: Load) -> Iterator[Backend]:
        yield Backend({"type": "memory"}, lambda memory, undo: Copy())

    return Subject(model.name, "memory", start, "copy", 0.9, depths=(2,))


def results_of(ratio: float) -> Results:
    found = Results(what="remote", started_at="2026-01-02T03:04:05Z", machine={"cores": "2", "load": "0.1 0.1 0.1"})
    for verb in ("load", "store"):
        cell = Cell(remote.MODE, 4, 16, verb)
        for number in range(3):
            found.add("redis", number, Speed(ratio, 0.3).figures(cell))
            found.add(partner_of("redis", "raw sockets"), number, Speed(1.0, 0.1).figures(cell))
    return found


def test_the_page_has_medians_ranges_and_what_is_not_reached(tmp_path: Path) -> None:
    shown = page(results_of(0.8))
    lines = [line for line in shown.splitlines() if line.startswith("| redis |")]
    assert [line.split(" | ")[2] for line in lines] == ["store", "load"]
    assert lines[0] == (
        "| redis | 4 MiB, 16 | store | 0.8 (0.8 to 0.8) | raw sockets | 1 (1 to 1) | **0.80** (0.80 to 0.80) | "
        "0.90, **not reached** | 3 | 0.30 | 0.10 |"
    )
    assert "* redis: 0.80 of raw sockets (4 MiB, 16 in flight, load); aim 0.90" in shown
    assert "s3_moto" not in shown, "what was not measured has no line"
    assert "The machine was busy" not in shown
    reached = results_of(0.95)
    reached.failures.append("s3_ceph, 16 in flight: no gateway")
    reached.machine["load"] = "3.0 1.0 1.0"
    shown = page(reached)
    assert "not reached" not in shown
    for said in ("Every median reaches its aim.", "* s3_ceph, 16 in flight: no gateway", "The machine was busy"):
        assert said in shown
    assert page(load(reached.save(tmp_path))) == shown


def test_the_benchmarks_page_has_a_place_for_it() -> None:
    shown = page(results_of(0.8))
    assert wrapped(shown.strip()) in replaced(PAGE.read_text(), remote.PART, shown)
