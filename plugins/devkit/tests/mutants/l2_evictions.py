"""Evictions of L2: a right one and mutants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lmcache_core import EvictedAdapter, L2EvictionContext, ObjectKey, Offer, Outcome, Usage
from lmcache_devkit.l2_eviction_suite import L2EvictionSuite
from lmcache_policies.l2_eviction.watermark import L2Pressure, WatermarkEviction, WatermarkSettings
from plugins.devkit.tests.mutants.planted import Planted


class Right(WatermarkEviction):
    """Right in everything; each mutant below is wrong in one thing."""


PLANTED = Planted("l2_evictions.py", Right)


class _Seen:
    """The adapter, as a mutant sees it."""

    def __init__(self, adapter: EvictedAdapter) -> None:
        self._adapter = adapter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._adapter, name)


def with_adapter(context: L2EvictionContext, adapter: object) -> L2EvictionContext:
    return L2EvictionContext(adapter, context.policy, context.clock, context.events)  # type: ignore[arg-type]


@PLANTED.killed_by("its_status_is_json_at_any_time", "not JSON serializable")
class SaysASet(Right):
    def status(self) -> dict[str, Any]:
        return {**super().status(), "goal": {self._goal_bytes}}


@PLANTED.killed_by("nothing_is_deleted_while_there_is_room")
class LikesEmptyAdapters(Right):
    def __init__(self, settings: WatermarkSettings, context: L2EvictionContext) -> None:
        super().__init__(settings.model_copy(update={"trigger_watermark": 0.01}), context)


@PLANTED.killed_by("a_full_adapter_has_room_again_and_is_not_emptied", "deletes nothing")
class WatchesNothing(Right):
    def cycle(self) -> None:
        pass


@PLANTED.killed_by("objects_from_before_the_start_are_found", "never deleted")
class DoesNotList(Right):
    def threads(self) -> Mapping[str, Callable[[], None]]:
        return {"eviction": self.run}


class _Idle(_Seen):
    def in_use(self) -> set[ObjectKey]:
        return set()


@PLANTED.killed_by("objects_in_use_are_not_deleted", "an object in use was to be deleted")
class LooksForNoUse(Right):
    def __init__(self, settings: WatermarkSettings, context: L2EvictionContext) -> None:
        super().__init__(settings, with_adapter(context, _Idle(context.adapter)))


@PLANTED.killed_by("the_policy_decides", "what was hit last went first")
class IgnoresHits(Right):
    def hit(self, keys: Sequence[ObjectKey]) -> None:
        pass


class _AlwaysDone(_Seen):
    def delete_soon(self, keys: Sequence[ObjectKey], on_answer: Callable[[Sequence[Outcome]], None]) -> None:
        self._adapter.delete_soon(keys, lambda outcomes: on_answer([Outcome.DONE] * len(outcomes)))


@PLANTED.killed_by("an_adapter_that_fails_is_tried_again", "failures are not counted")
class BelievesThatItWorked(Right):
    def __init__(self, settings: WatermarkSettings, context: L2EvictionContext) -> None:
        super().__init__(settings, with_adapter(context, _AlwaysDone(context.adapter)))


@PLANTED.killed_by("evicted_objects_are_counted", "are not what was deleted")
class CountsNoBytes(Right):
    def cycle(self) -> None:
        super().cycle()
        self.counts.evicted_bytes = 0


class _Impatient(L2Pressure):
    def excess(self) -> Usage | None:
        usage = self._adapter.usage()
        assert usage is not None
        return usage if usage.used_bytes > self._watermark * (usage.capacity_bytes or 0) else None


@PLANTED.killed_by("an_adapter_that_counts_now_and_then_is_not_emptied", "by a count that does not change")
class BelievesAnOldCount(Right):
    def __init__(self, settings: WatermarkSettings, context: L2EvictionContext) -> None:
        super().__init__(settings, context)
        self._pressure = _Impatient(context.adapter, self._watermark)


class _Answering(_Seen):
    answers = True


@PLANTED.killed_by("an_adapter_that_does_not_answer_is_asked_for_nothing")
class AsksWhoDoesNotAnswer(Right):
    def __init__(self, settings: WatermarkSettings, context: L2EvictionContext) -> None:
        super().__init__(settings, with_adapter(context, _Answering(context.adapter)))


@PLANTED.killed_by("nothing_is_deleted_while_there_is_room", "threads that do not end after stop")
class DoesNotStop(Right):
    def stop(self) -> None:
        pass


@PLANTED.killed_by("a_full_adapter_has_room_again_and_is_not_emptied", "no luck")
class FailsAtItsFirstDelete(Right):
    def _delete_some(self) -> None:
        raise RuntimeError("no luck")


@PLANTED.killed_by("it_is_an_eviction", "its threads have names")
class NamesNoThread(Right):
    def threads(self) -> Mapping[str, Callable[[], None]]:
        return {"": self.run}


def offer_of(kind: type[Right]) -> Offer:
    settings = f"{WatermarkSettings.__module__}:{WatermarkSettings.__name__}"
    return Offer(kind.__name__, "planted", f"{__name__}:{kind.__name__}", settings)


globals().update(PLANTED.suites(L2EvictionSuite, __name__, offer_of))
