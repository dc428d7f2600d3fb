"""Every row, briefly, against a real server: it runs, checks its answers, and gives the figures that it is for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.catalogue import FIGURES, ROWS
from benchmarks.cpu_clock import CpuMeter
from benchmarks.echo import EchoProcess
from benchmarks.frames import NOOP, LookupCycle
from benchmarks.l1_index import measure
from benchmarks.load import Load, running
from benchmarks.machine import loopback_us
from benchmarks.peer import BenchmarkError, Peer
from benchmarks.prompts import Prompt
from benchmarks.rows.site import Site, steady
from tests.conftest import StartServer

BRIEF = 0.02


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[EchoProcess]:
    process = EchoProcess(tmp_path / "echo.log")
    process.start()
    yield process
    process.stop()


def test_all_rows_of_a_server(start_server: StartServer) -> None:
    server = start_server("--l1-size-gb", "0.25")
    figures: dict[str, float] = {}
    with Peer(server.port) as peer:
        peer.register()
        site = Site(peer, server.port, server.pid, checks=True, scale=BRIEF)
        for row in ROWS.values():
            figures |= row(site)
    assert set(figures) == {name for name in FIGURES if not name.startswith(("l1_", "transfer_"))}
    assert {name: value for name, value in figures.items() if value <= 0} == {}


def test_an_echo_can_be_asked_the_same(echo: EchoProcess) -> None:
    with Peer(echo.port, checks=False) as peer:
        assert peer.ask(NOOP) == NOOP
        site = Site(peer, echo.port, echo.pid, checks=False, scale=BRIEF)
        assert ROWS["lookup"](site).keys() <= FIGURES.keys()


def test_a_hit_that_is_none_makes_no_figure(start_server: StartServer) -> None:
    server = start_server("--l1-size-gb", "0.1")
    with Peer(server.port) as peer:
        peer.register()
        cycle = LookupCycle(Prompt(2, seed=1).token_ids(), 2, "r")
        with pytest.raises(BenchmarkError, match="found 0, 2 were expected"):
            peer.look_up(cycle)


def test_a_client_process_that_fails_is_an_error(start_server: StartServer) -> None:
    server = start_server("--l1-size-gb", "0.1")
    with pytest.raises(BenchmarkError, match="a client process failed"), running([Load(server.port, 1, 1, True)]):
        raise AssertionError("it cannot have started")


def test_the_index_counts_what_it_evicts() -> None:
    figures = measure(2_000, "off", hit_batches=50)
    assert figures.keys() == {name for name in FIGURES if name.startswith("l1_")}
    del figures["l1_bytes_per_key"]  # of so few keys: less than what the system may take back meanwhile
    assert all(value >= 0 for value in figures.values())


def test_one_hiccup_does_not_count_and_steady_work_does() -> None:
    assert steady([1.0] * 9 + [100.0]) == 1.0
    assert steady([1.0, 3.0] * 10) == 2.0
    assert steady([7.0]) == 7.0


def test_loopback_takes_time() -> None:
    assert loopback_us(round_trips=50) > 0


def test_cpu_of_threads_that_have_ended_counts() -> None:
    program = (
        "import threading, time\n"
        "thread = threading.Thread(target=lambda: sum(range(2_000_000))); thread.start(); thread.join()\n"
        "print(time.process_time(), flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        own = float(child.stdout.readline())
        meter = CpuMeter(child.pid)
        with meter:
            time.sleep(0.01)
        try:
            assert meter.seconds < own
            with CpuMeter(os.getpid()) as mine:
                start_time = time.process_time()
                while time.process_time() - start_time < 0.02:
                    pass
            assert mine.seconds >= 0.02
        finally:
            child.kill()
