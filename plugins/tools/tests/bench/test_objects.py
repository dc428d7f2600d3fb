"""Objects that are measured with: whatever does not come back byte for byte is seen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_core.model.keys import ObjectKey
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.lane import Lane, Step, Verb
from lmcache_tools.bench.objects import BenchObjects
from lmcache_tools.bench.traffic import Traffic
from plugins.tools.tests.bench.lanes import desk_lane, region

SIZE = 3 * 4096 + 100
STRIDE = 4 * 4096


def objects(count: int = 4) -> BenchObjects:
    made = BenchObjects(region(count * STRIDE), SIZE, STRIDE, count)
    made.renew()
    return made


def moved(lane: Lane, steps: list[Step]) -> list[Step]:
    assert Traffic(3, 5.0, Interruption()).run(lane, steps) is not None
    return steps


def test_each_pass_of_loads_brings_every_object_to_where_another_one_lies() -> None:
    with desk_lane() as lane:
        made = objects()
        stored = moved(lane, made.stores())
        where = {step.key: step.buffer.offset for step in stored}
        for _ in range(5):
            loads = made.loads()
            assert {step.key for step in loads} == set(where)
            assert all(where[step.key] != step.buffer.offset for step in loads)
            moved(lane, loads)
            assert not list(made.wrong(loads))
            where = {step.key: step.buffer.offset for step in loads}


def test_renewed_objects_are_others() -> None:
    made = objects()
    first = {step.key for step in made.stores()}
    made.renew()
    assert first.isdisjoint(step.key for step in made.stores())


@pytest.mark.parametrize("percent", [1, 30, 50, 99])
def test_a_mix_loads_what_was_stored_and_stores_the_same_new_objects_for_all(percent: int) -> None:
    with desk_lane() as one, desk_lane() as other:
        made = objects(20)
        stored = {step.key for step in moved(one, made.stores())}
        moved(other, made.stores())
        steps = made.mixed(percent)
        new: list[list[ObjectKey]] = []
        for lane in (one, other, one):
            taken = moved(lane, steps())
            assert not list(made.wrong(taken))
            loads = [step.key for step in taken if step.verb is Verb.LOAD]
            assert len(loads) == 20 * percent // 100
            assert set(loads) <= stored
            new.append([step.key for step in taken if step.verb is Verb.STORE])
        assert new[0] == new[1] == new[2]
        assert stored.isdisjoint(new[0])
        later = moved(one, made.loads())
        assert not list(made.wrong(later))


def test_every_size_down_to_the_least_can_be_moved() -> None:
    with desk_lane() as lane:
        made = BenchObjects(region(2 * 8192), 8192, 8192, 2)
        made.renew()
        moved(lane, made.stores())
        loads = moved(lane, made.loads())
        assert not list(made.wrong(loads))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, SIZE - 1), st.integers(1, SIZE))
def test_wrong_bytes_are_seen(start: int, length: int) -> None:
    """A load that leaves out any stretch of 16 bytes and more: two pages are never alike so long."""
    end = min(SIZE, max(start + length, start + 16))
    start = min(start, end - 16)

    def leaves_out(step: Step, kept: dict[ObjectKey, bytes]) -> str | None:
        if step.verb is Verb.STORE:
            kept[step.key] = bytes(step.buffer.view)
        else:
            step.buffer.view[:start] = kept[step.key][:start]
            step.buffer.view[end:] = kept[step.key][end:]
        return None

    with desk_lane(leaves_out) as lane:
        made = objects(2)
        stored = moved(lane, made.stores())
        same = all(lane.kept[step.key][start:end] == lane.kept[stored[0].key][start:end] for step in stored)
        loads = moved(lane, made.loads())
        assert same or len(list(made.wrong(loads))) == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 8 * SIZE - 1))
def test_any_flipped_bit_is_seen(bit: int) -> None:
    def flips(step: Step, kept: dict[ObjectKey, bytes]) -> str | None:
        if step.verb is Verb.STORE:
            kept[step.key] = bytes(step.buffer.view)
        else:
            step.buffer.view[:] = kept[step.key]
            step.buffer.view[bit // 8] ^= 1 << bit % 8
        return None

    with desk_lane(flips) as lane:
        made = objects(2)
        moved(lane, made.stores())
        assert len(list(made.wrong(moved(lane, made.loads())))) == 2
