"""Adapters tried as a server uses them: one that works, and several that do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lmcache_core.app.adapter_specs import adapter_specs
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.builtin.memory_l2 import MemoryAdapter
from lmcache_core.contracts.buffers import LentBuffer
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome
from lmcache_tools.doctor.adapter_trial import ROUNDS, TrialFailedError, try_adapter
from lmcache_tools.doctor.adapters import adapter_trials
from lmcache_tools.doctor.case import Case
from lmcache_tools.doctor.finding import Level
from plugins.tools.tests.doctor.conftest import MakeCase

Install = Callable[..., Path]
OBJECT_BYTES = 64 * 1024


def with_adapters(case: Case, *types: str) -> Case:
    plugins = load_plugins()
    return replace(case, plugins=plugins, adapters=adapter_specs([{"type": each} for each in types], plugins))


def test_an_adapter_that_works(make_case: MakeCase) -> None:
    case = with_adapters(make_case(), "memory")
    trial = try_adapter(case.adapters[0], case.plugins, OBJECT_BYTES, 10.0)
    assert trial.adapter == "memory"
    assert trial.object_bytes == OBJECT_BYTES
    assert trial.was_deleted
    assert min(trial.open_seconds, trial.store_seconds, trial.lookup_seconds, trial.load_seconds) > 0
    assert trial.load_bytes_per_second == OBJECT_BYTES / trial.load_seconds
    ((finding, same),) = adapter_trials(case)
    assert finding.level is Level.OK
    assert "byte for byte" in finding.text
    assert same is not None


def test_nothing_stays_in_the_adapter(make_case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[MemoryAdapter] = []
    close = MemoryAdapter.close

    def closing(self: MemoryAdapter, deadline_seconds: float) -> None:
        usage = self.usage()
        assert usage is not None
        assert usage.objects == 0
        opened.append(self)
        close(self, deadline_seconds)

    monkeypatch.setattr(MemoryAdapter, "close", closing)
    case = with_adapters(make_case(), "memory")
    try_adapter(case.adapters[0], case.plugins, OBJECT_BYTES, 10.0)
    assert len(opened) == 1


def test_bytes_that_come_back_wrong_are_seen(make_case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: MemoryAdapter, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        buffer.view[:] = b"\x01" * buffer.length
        return Outcome.DONE

    monkeypatch.setattr(MemoryAdapter, "load", load)
    case = with_adapters(make_case(), "memory")
    with pytest.raises(TrialFailedError, match="load: other bytes came back than were stored"):
        try_adapter(case.adapters[0], case.plugins, OBJECT_BYTES, 10.0)


def test_a_step_that_is_refused_is_named(make_case: MakeCase, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[ObjectKey] = []

    def store(self: MemoryAdapter, key: ObjectKey, buffer: LentBuffer) -> Outcome:
        return Outcome.REJECTED

    def delete(self: MemoryAdapter, key: ObjectKey) -> Outcome:
        deleted.append(key)
        return Outcome.MISSING

    monkeypatch.setattr(MemoryAdapter, "store", store)
    monkeypatch.setattr(MemoryAdapter, "delete", delete)
    ((finding, trial),) = adapter_trials(with_adapters(make_case(), "memory"))
    assert trial is None
    assert finding.level is Level.FAIL
    assert finding.text == "store: rejected"
    assert len(deleted) == 1


def test_one_that_cannot_be_opened_and_one_that_raises(make_case: MakeCase, install: Install) -> None:
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
    found = [finding for finding, trial in adapter_trials(with_adapters(make_case(), "locked", "memory", "odd"))]
    assert [finding.level for finding in found] == [Level.FAIL, Level.OK, Level.FAIL]
    assert found[0].text == "its folder is in use by another server"
    assert "odd" in found[2].text


def test_rounds_are_more_than_one() -> None:
    assert ROUNDS > 1  # the first one pays for connections and caches
