"""Whose turn it is, of several that wait: the same for adapters of coroutines and of blocking methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from libs.l2_adapter.tests.blocking_scripted_adapter import BlockingGate, BlockingScripted
from libs.l2_adapter.tests.scripted_adapter import Gate, Scripted, closed_behind, items
from lmcache_core import LoadItem, Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_devkit.l2_driver import L2Driver

DONE = Outcome.DONE
A, B, C, D = map(object_key, range(4))


class Kind(NamedTuple):
    adapter: Callable[..., Any]
    """Of a context and how many it may do at a time."""
    gate: Callable[[], Any]


@pytest.fixture(params=[Kind(Scripted, Gate), Kind(BlockingScripted, BlockingGate)], ids=["async", "blocking"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def adapter(request: pytest.FixtureRequest, kind: Kind, memory: BorrowedMemory) -> Iterator[Any]:
    with closed_behind(kind.adapter(adapter_context(memory, name="scripted"), getattr(request, "param", 2))) as adapter:
        yield adapter


@pytest.fixture
def gate(kind: Kind) -> Iterator[Any]:
    gate = kind.gate()
    yield gate
    gate.opened.set()


one_at_a_time = pytest.mark.parametrize("adapter", [1], indirect=True)


def test_up_to_concurrency_transfers_run_at_a_time(
    adapter: Any, driver: L2Driver, memory: BorrowedMemory, gate: Any
) -> None:
    adapter.script = {("store", object_key(number)): gate for number in range(6)}
    job = adapter.submit_store(items(memory, *range(6)))
    gate.wait_reached()
    gate.wait_reached()
    assert not gate.reached.acquire(timeout=0.05)
    assert adapter.in_flight == 6
    gate.opened.set()
    assert driver.finish(job) == (DONE,) * 6
    assert adapter.in_flight == 0


@one_at_a_time
def test_loads_overtake_stores_and_lookups_wait_for_neither(
    adapter: Any, driver: L2Driver, memory: BorrowedMemory, gate: Any
) -> None:
    adapter.script["store", A] = gate
    first = adapter.submit_store(items(memory, 0, 1))
    gate.wait_reached()
    last = adapter.submit_load([LoadItem(*item) for item in items(memory, 2)])
    assert driver.lookup(D) == (DONE,)
    gate.opened.set()
    driver.finish(first)
    driver.finish(last)
    assert adapter.calls == [("store", A), ("contains", D), ("load", C), ("store", B)]


@one_at_a_time
def test_loads_without_end_do_not_starve_a_store(
    adapter: Any, driver: L2Driver, memory: BorrowedMemory, gate: Any
) -> None:
    adapter.script["load", A] = gate
    loads = [adapter.submit_load([LoadItem(*item) for item in items(memory, 0)])]
    gate.wait_reached()
    loads += [adapter.submit_load([LoadItem(*item) for item in items(memory, 1)]) for _ in range(100)]
    store = adapter.submit_store(items(memory, 2))
    gate.opened.set()
    for job in (*loads, store):
        driver.finish(job)
    assert adapter.calls.index(("store", C)) < 50
