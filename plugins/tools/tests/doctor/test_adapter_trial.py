"""Adapters tried as a server uses them: one that works, and several that do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.builtin.memory_l2 import MemoryAdapter
from lmcache_core.contracts.l1_memory import BorrowedBuffer
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome
from lmcache_tools.doctor.adapter_trial import ROUNDS, TrialFailedError, try_adapter
from lmcache_tools.doctor.adapters import adapter_trials
from lmcache_tools.doctor.check_context import CheckContext
from lmcache_tools.doctor.probe_result import Level
from plugins.tools.tests.doctor.conftest import MakeContext

Install = Callable[..., Path]
OBJECT_BYTES = 64 * 1024


def with_adapters(context: CheckContext, *types: str) -> CheckContext:
    plugins = load_plugins()
    return replace(context, plugins=plugins, adapters=adapter_specs([{"type": each} for each in types], plugins))


def test_an_adapter_that_works(make_context: MakeContext) -> None:
    context = with_adapters(make_context(), "memory")
    trial = try_adapter(context.adapters[0], context.plugins, OBJECT_BYTES, 10.0)
    assert trial.adapter == "memory"
    assert trial.object_bytes == OBJECT_BYTES
    assert trial.was_deleted
    assert min(trial.open_seconds, trial.store_seconds, trial.lookup_seconds, trial.load_seconds) > 0
    assert trial.load_bytes_per_second == OBJECT_BYTES / trial.load_seconds
    ((result, same),) = adapter_trials(context)
    assert result.level is Level.OK
    assert "byte for byte" in result.text
    assert same is not None


def test_nothing_stays_in_the_adapter(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[MemoryAdapter] = []
    close = MemoryAdapter.close

    def closing(self: MemoryAdapter, deadline_seconds: float) -> None:
        usage = self.usage()
        assert usage is not None
        assert usage.objects == 0
        opened.append(self)
        close(self, deadline_seconds)

    monkeypatch.setattr(MemoryAdapter, "close", closing)
    context = with_adapters(make_context(), "memory")
    try_adapter(context.adapters[0], context.plugins, OBJECT_BYTES, 10.0)
    assert len(opened) == 1


def test_bytes_that_come_back_wrong_are_seen(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: MemoryAdapter, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        buffer.view[:] = b"\x01" * buffer.length
        return Outcome.DONE

    monkeypatch.setattr(MemoryAdapter, "load", load)
    context = with_adapters(make_context(), "memory")
    with pytest.raises(TrialFailedError, match="load: other bytes came back than were stored"):
        try_adapter(context.adapters[0], context.plugins, OBJECT_BYTES, 10.0)


def test_a_step_that_is_refused_is_named(make_context: MakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[ObjectKey] = []

    def store(self: MemoryAdapter, key: ObjectKey, buffer: BorrowedBuffer) -> Outcome:
        return Outcome.REJECTED

    def delete(self: MemoryAdapter, key: ObjectKey) -> Outcome:
        deleted.append(key)
        return Outcome.MISSING

    monkeypatch.setattr(MemoryAdapter, "store", store)
    monkeypatch.setattr(MemoryAdapter, "delete", delete)
    ((result, trial),) = adapter_trials(with_adapters(make_context(), "memory"))
    assert trial is None
    assert result.level is Level.FAIL
    assert result.text == "store: rejected"
    assert len(deleted) == 1


def test_one_that_cannot_be_opened_and_one_that_raises(make_context: MakeContext, install: Install) -> None:
    install(
        "broken",
        """
        from lmcache_core import Offer, hookimpl
        from lmcache_client.errors import ResourceError

        def open_locked(settings, context):
            raise ResourceError("its folder is in use by another server")

        class Odd:
            capabilities = 0
        def open_odd(settings, context):
            return Odd()

        @hookimpl
        def lmcache_l2_adapters():
            return [Offer("locked", "x", "broken_plugin:open_locked"), Offer("odd", "x", "broken_plugin:open_odd")]
        """,
    )
    found = [result for result, trial in adapter_trials(with_adapters(make_context(), "locked", "memory", "odd"))]
    assert [result.level for result in found] == [Level.FAIL, Level.OK, Level.FAIL]
    assert found[0].text == "its folder is in use by another server"
    assert "odd" in found[2].text


def test_rounds_are_more_than_one() -> None:
    assert ROUNDS > 1  # the first one pays for connections and caches
