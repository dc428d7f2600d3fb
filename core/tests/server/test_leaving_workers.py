"""A worker leaves, and comes back under its id, while a request of its earlier registration is being answered."""

from __future__ import annotations

from typing import Any

import pytest

from lmcache_client.engine_key import EngineKey, encode_tokens
from lmcache_client.operations import COMMIT_STORE, PREPARE_STORE
from lmcache_core.contracts.operation import Handler
from lmcache_core.contracts.request_module import ObjectGroup, Worker
from lmcache_core.server.engine_driven_module import EngineDrivenModule
from lmcache_devkit.module_bench import INSTANCE, MODEL, ModuleBench

KEY = EngineKey(MODEL, 1, 0, encode_tokens(range(32)), 0, 32, "r", "", None, 1)


def test_the_store_of_a_new_registration_outlives_a_late_prepare_of_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ModuleBench() as bench:
        module = EngineDrivenModule(bench.context)
        handlers: dict[str, Handler] = {handler.operation.name: handler for handler in module.handlers()}

        def register() -> None:
            bench.workers.register(
                Worker(INSTANCE, MODEL, 1, (ObjectGroup(bench.layout),), 0, inline=False, proven=True)
            )

        bench.workers.unregister(INSTANCE, "to register with shared memory")
        register()
        add, given = module._stores.add, list[Any]()

        def add_and_come_back(*store: Any) -> bool:
            monkeypatch.setattr(module._stores, "add", add)
            added = add(*store)
            bench.workers.unregister(INSTANCE, "it ends")
            register()
            given.append(bench.call(handlers[PREPARE_STORE.name], KEY, INSTANCE))
            return added

        monkeypatch.setattr(module._stores, "add", add_and_come_back)
        assert bench.call(handlers[PREPARE_STORE.name], KEY, INSTANCE).context.slots == ()
        assert len(given[0].context.slots) == 2
        assert bench.call(handlers[COMMIT_STORE.name], KEY, INSTANCE, memoryview(b"")) is True
        assert module.status()["stores_prepared"] == 0
