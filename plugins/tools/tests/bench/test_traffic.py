"""The loop around a bench target: never more than its depth, every end counted, and what happens when it goes wrong."""

from __future__ import annotations

import os
import signal

import pytest

from lmcache_core.model.keys import ObjectKey
from lmcache_tools.bench.interruption import Interruption
from lmcache_tools.bench.lane import BenchFailedError, Step
from lmcache_tools.bench.objects import BenchObjects
from lmcache_tools.bench.traffic import Traffic
from plugins.tools.tests.bench.lanes import DeskLane, desk_lane, region, whole

COUNT = 10


def stores() -> list[Step]:
    made = BenchObjects(region(COUNT * 8192), 8192, 8192, COUNT)
    made.renew()
    return made.stores()


@pytest.mark.parametrize("depth", [1, 3, COUNT, 2 * COUNT])
def test_as_many_are_on_their_way_as_the_depth_says(depth: int) -> None:
    with desk_lane() as lane:
        steps = stores()
        sample = Traffic(depth, 5.0, Interruption()).run(lane, steps)
        assert sample is not None
        assert lane.most == min(depth, COUNT)
        assert lane.order == [step.token for step in steps]
        assert sample.moved_bytes == COUNT * 8192
        assert len(sample.latencies) == COUNT
        assert 0 < max(sample.latencies) <= sample.seconds
        assert sample.bytes_per_second == pytest.approx(sample.moved_bytes / sample.seconds)
        assert sample.cpu_seconds >= 0


def test_the_first_failure_ends_it_once_nothing_is_on_its_way() -> None:
    def third_fails(step: Step, kept: dict[ObjectKey, bytes]) -> str | None:
        whole(step, kept)
        return "no room" if len(kept) >= 3 else None

    with desk_lane(third_fails) as lane:
        with pytest.raises(BenchFailedError, match=r"desk: store of an object of 8 KiB: no room"):
            Traffic(4, 5.0, Interruption()).run(lane, stores())
        assert len(lane.order) == 4
        assert not lane._done


def test_a_target_that_completes_nothing_is_abandoned() -> None:
    class Silent(DeskLane):
        def start(self, steps: object) -> None:
            pass

    lane = Silent()
    try:
        with pytest.raises(BenchFailedError, match=r"nothing has ended within 0\.3 s, with 2 objects on their way"):
            Traffic(2, 0.3, Interruption()).run(lane, stores())
    finally:
        lane.close()


def test_an_interruption_lets_what_is_on_its_way_end() -> None:
    with Interruption() as interruption:

        def interrupts(step: Step, kept: dict[ObjectKey, bytes]) -> str | None:
            whole(step, kept)
            if len(kept) == 5:
                os.kill(os.getpid(), signal.SIGINT)
            return None

        with desk_lane(interrupts) as lane:
            assert Traffic(2, 5.0, interruption).run(lane, stores()) is None
            assert not lane._done
            assert 5 <= len(lane.kept) < COUNT


def test_a_second_signal_is_not_waited_for_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interruption() as interruption:
        os.kill(os.getpid(), signal.SIGTERM)
        assert interruption.asked
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
