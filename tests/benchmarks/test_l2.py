"""The L2 benchmark: what fio and the public server say, pairs in turns, ratios, results and the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks import l2_fio, l2_public
from benchmarks.l2 import PART, page
from benchmarks.l2_cell import CPU, SPEED, Cell, Speed
from benchmarks.l2_fio import Fio, engine_for
from benchmarks.l2_lane import Runner, opened
from benchmarks.l2_memcpy import memcpy
from benchmarks.l2_pairs import Pairs, partner_of
from benchmarks.l2_subjects import SUBJECTS
from benchmarks.l2_table import text, verdicts
from benchmarks.l2_versus_public import PUBLIC, in_batches
from benchmarks.peer import BenchmarkError
from benchmarks.report import PAGE, replaced, wrapped
from benchmarks.results import Results, load
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.model.keys import ObjectKey
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.lane import Step, Verb
from lmcache_tools.bench.objects import BenchObjects
from plugins.tools.tests.bench.lanes import desk_lane, region

MIB = 1 << 20
SIZE, COUNT = 16384, 8
REPORT = {
    "jobs": [
        {
            "write": {"io_bytes": 0, "runtime": 0},
            "read": {"io_bytes": 2_000_000_000, "runtime": 500},
            "job_runtime": 1000,
            "usr_cpu": 10.0,
            "sys_cpu": 30.0,
        }
    ]
}


def objects() -> BenchObjects:
    made = BenchObjects(region(COUNT * SIZE), SIZE, SIZE, COUNT)
    made.renew()
    return made


class Scripted:
    """A side with speeds of its own."""

    def __init__(self, name: str, speed: float, order: list[str]) -> None:
        self.name = name
        self._speed = speed
        self._order = order

    def run(self, steps: Sequence[Step]) -> Speed:
        self._order.append(f"{steps[0].verb.value} {self.name}")
        return Speed(self._speed, 0.5)

    def clear(self) -> None:
        self._order.append(f"clear {self.name}")


@pytest.fixture
def measured() -> Results:
    """fs at 0.8 and 0.6 of fio, dax at 0.95 of a copy, and fs_native beside the public server."""
    found = Results(what="l2", started_at="2026-01-02T03:04:05Z", machine={"cores": "2"}, subjects={"fio": "fio-9"})
    for number in range(3):
        for depth, ratio in ((1, 0.8), (16, 0.6)):
            cell = Cell("direct", 4, depth, "load")
            found.add("fs", number, Speed(ratio * (1 + number), 0.3).figures(cell))
            found.add(partner_of("fs", "fio"), number, Speed(1.0 + number, 0.1).figures(cell))
        copied = Cell("memory", 4, 1, "store")
        found.add("dax", number, Speed(9.5, 0.1).figures(copied))
        found.add(partner_of("dax", "memcpy"), number, Speed(10.0, 0.1).figures(copied))
        beside = Cell("buffered", 32, 1, "load")
        found.add(in_batches("fs_native"), number, Speed(3.0).figures(beside))
        found.add(partner_of("fs_native", PUBLIC), number, Speed(4.0).figures(beside))
    return found


def test_a_figure_names_its_cell() -> None:
    cell = Cell("direct", 4, 16, "load")
    assert Cell.of(cell.figure(SPEED)) == (cell, SPEED)
    assert Speed(1.0).figures(cell) == {cell.figure(SPEED): 1.0}
    assert Speed(1.0, 0.0).figures(cell)[cell.figure(CPU)] == 0.0
    with pytest.raises(ValueError, match="unpack"):
        Cell.of("noop, p50, us")


def test_the_speed_of_fio_is_that_of_its_run() -> None:
    assert l2_fio.speed(REPORT) == pytest.approx((4.0, 0.4 / 2.0))


def test_the_fastest_engine_of_fio_is_taken_unless_one_is_named() -> None:
    assert [engine_for("auto", is_direct) for is_direct in (False, True)] == ["psync", "io_uring"]
    assert engine_for("libaio", False) == "libaio"


def test_fio_moves_what_the_steps_do(tmp_path: Path) -> None:
    stores = objects().stores()
    one = Fio(tmp_path, True, 4, "io_uring").command(stores)
    assert {"--rw=write", "--bs=16384", "--size=131072", "--iodepth=4", "--numjobs=1", "--direct=1"} <= set(one)
    many = Fio(tmp_path, False, 4, "psync").command(stores)
    assert {"--size=32768", "--iodepth=1", "--numjobs=4", "--direct=0", "--nrfiles=1"} <= set(many)
    assert "--nrfiles=2" in Fio(tmp_path, False, 4, "psync", file_per_object=True).command(stores)


@pytest.mark.skipif(not l2_fio.is_installed(), reason="fio is not installed")
@pytest.mark.parametrize("file_per_object", [False, True])
@pytest.mark.parametrize("engine", ["psync", "libaio"])
def test_fio_itself(engine: str, file_per_object: bool, tmp_path: Path) -> None:
    side = Fio(tmp_path, False, 2, engine, file_per_object)
    made = objects()
    assert side.run(made.stores()).gb_per_second > 0
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert sum(sizes) == COUNT * SIZE
    assert not file_per_object or sizes == [SIZE] * COUNT
    assert side.run(made.loads()).gb_per_second > 0
    side.clear()
    assert not list(tmp_path.iterdir())
    with pytest.raises(BenchmarkError, match="fio failed: "):
        Fio(tmp_path, False, 2, "none-of-fio").run(made.stores())


def test_what_the_public_benchmark_prints_is_read() -> None:
    operations = [
        {"operation": name, "duration_avg_ms": ms, "total_keys": 8, "total_success": 8}
        for name, ms in (("Store", 64.0), ("Lookup", 1.0), ("Load", 16.0))
    ]
    metrics = {"config": {"data_per_round_mb": 16.0}} | {f"op_{n}": one for n, one in enumerate(operations)}
    printed = "[Load] Round 1: {}\n\n" + json.dumps({"metrics": metrics}, indent=2) + "\n[Cleanup] Done.\n"
    speeds = l2_public.speeds(printed)
    assert {verb: speed.gb_per_second for verb, speed in speeds.items()} == pytest.approx(
        {"store": 16 * MIB / 1e9 / 0.064, "load": 16 * MIB / 1e9 / 0.016}
    )
    operations[2]["total_success"] = 7
    with pytest.raises(BenchmarkError, match="load: 7 of 8"):
        l2_public.speeds("\n" + json.dumps({"metrics": metrics}, indent=2))


def test_sides_take_turns_and_warming_up_does_not_count() -> None:
    order: list[str] = []
    settled: list[str] = []
    found = Results(what="l2", started_at="")
    # what comes back is not looked at: neither side moves a byte
    pairs = Pairs("fs", Unchecked(region(COUNT * SIZE), SIZE, SIZE, COUNT), settled.append, found)
    for number in (-1, 0, 1):
        pairs.round("direct", 4, 1, number, Scripted("fs", 1.0, order), Scripted("fio", 2.0, order))
    turns = [" ".join(order[at : at + 6]) for at in range(0, len(order), 6)]
    first, second = "store fs store fio load fs load fio", "store fio store fs load fio load fs"
    assert turns == [f"{one} clear fs clear fio" for one in (second, first, second)]
    assert settled == ["store", "store", "load", "load"] * 3
    ratio = found.ratios(Cell("direct", 4, 1, "load").figure(SPEED), "fs", partner_of("fs", "fio"))
    assert ratio == (0.5, 0.5, 0.5)
    assert {len(by) for figure in found.samples.values() for by in figure.values()} == {2}


class Unchecked(BenchObjects):
    def wrong(self, steps: Sequence[Step]) -> Sequence[str]:  # type: ignore[override]
        return ()


def test_an_object_that_comes_back_wrong_ends_the_pair() -> None:
    def corrupts(step: Step, kept: dict[ObjectKey, bytes]) -> str | None:
        if step.verb is Verb.LOAD:
            step.buffer.view[-1] ^= 1
        return None

    found = Results(what="l2", started_at="")
    with desk_lane(corrupts) as lane:
        own = Runner(lane, 2, Interruption())
        with pytest.raises(BenchmarkError, match="fs: 8 objects came back wrong"):
            Pairs("fs", objects(), lambda verb: None, found).round("direct", 4, 2, 0, own, Scripted("fio", 1.0, []))


def test_an_interruption_and_a_failure_of_a_target_are_raised() -> None:
    with desk_lane(lambda step, kept: "no room") as lane:
        with pytest.raises(BenchmarkError, match="desk: store of an object of 16 KiB: no room"):
            Runner(lane, 2, Interruption()).run(objects().stores())
        interruption = Interruption()
        interruption.asked = True
        with pytest.raises(KeyboardInterrupt):
            Runner(lane, 2, interruption).run(objects().stores())


def test_every_adapter_of_ours_opens_with_its_settings_and_brings_everything_back(tmp_path: Path) -> None:
    plugins = load_plugins((), ())
    found = Results(what="l2", started_at="")
    for subject in SUBJECTS:
        for mode in subject.modes:
            folder = tmp_path / f"{subject.name}-{mode}"
            folder.mkdir()
            settings = subject.settings(folder, mode, MIB, 4)
            with opened(settings, plugins, 4 * MIB) as (lane, memory), ExitStack() as undo:
                own = Runner(lane, 2, Interruption())
                copy = memcpy(1, 2, 4, memory, Interruption(), undo)
                made = BenchObjects(memory.arena.region, MIB, MIB, 4)
                Pairs(subject.name, made, lambda verb: None, found).round(mode, 1, 2, 0, own, copy)
                assert not lane.stored
            assert found.spread(Cell(mode, 1, 2, "load").figure(SPEED), subject.name)


def test_the_page_has_ratios_of_pairs_and_what_is_not_reached(measured: Results) -> None:
    shown = text(measured)
    assert "#### Beside fio: past the page cache (O_DIRECT)" in shown
    fio = next(line for line in shown.splitlines() if line.startswith("| fs |"))
    assert fio == (
        "| fs | 4 MiB | load | 1.60, **0.80** (0.80 to 0.80) | 1.20, **0.60** (0.60 to 0.60) | 3.0 x "
        "| 0.30 to 0.30 | 0.10 to 0.10 |"
    )
    assert "| dax | 4 MiB | store | 9.50, **0.95** (0.95 to 0.95) | 0.10 to 0.10 | 0.10 to 0.10 |" in shown
    assert "| fs_native | 32 MiB | load | 3.00, **0.75** (0.75 to 0.75) |" in shown
    assert verdicts(measured) == [
        "fs: 0.60 of fio (direct, 4 MiB, depth 16, load); aim 0.70",
        "fs_native: 0.75 of the public server (buffered, 32 MiB, depth 1, load); aim 1.00",
    ]
    assert "Not reached:" in page(measured)
    assert "* **fio**: fio-9" in page(measured)


def test_the_benchmarks_page_has_a_place_for_it(measured: Results) -> None:
    assert wrapped(page(measured)) in replaced(PAGE.read_text(), PART, page(measured))


def test_a_run_that_was_kept_shows_the_same(measured: Results, tmp_path: Path) -> None:
    assert page(load(measured.save(tmp_path))) == page(measured)
