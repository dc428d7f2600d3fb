"""The `lm` adapter keeps every requirement, with values in memory and in files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import ObjectKey
from lmcache_devkit import L2AdapterSuite, Media, fail_methods
from lmcache_devkit.l2.fixtures import L2Fixtures
from lmcache_l2_lm.frames import bytes_form, key_of
from lmcache_l2_lm.line import Line
from lmcache_l2_lm.store_server import server
from plugins.l2_lm.tests.running import HOST, Client, Running, running


class StoreMedia(Media):
    """Values of a store server in this process."""

    def __init__(self, store: Running) -> None:
        self._store = store

    def read(self, key: ObjectKey) -> bytes | None:
        with Client(self._store.port) as client:
            found = client.get(key_of(key))
        return found[1] if found else None

    def write(self, key: ObjectKey, data: bytes) -> None:
        with Client(self._store.port) as client:
            client.put(key_of(key), data, bytes_form(len(data)))
            assert client.exists(key_of(key))

    def remove(self, key: ObjectKey) -> None:
        self._store.values.remove(key_of(key))


class LmSetup(L2Fixtures):
    offer = "lm"
    payload_bytes_max = 16 * 2**20
    open_close_rounds = 50

    @pytest.fixture
    def store(self) -> Iterator[Running]:
        with running() as store:
            yield store

    @pytest.fixture
    def settings(self, store: Running) -> Mapping[str, Any]:
        return {"host": HOST, "port": store.port}

    @pytest.fixture
    def media(self, store: Running) -> Media | None:
        return StoreMedia(store)

    @pytest.fixture
    def stalled(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        goes_on = threading.Event()
        goes_on.set()
        following = server._Client.next

        def next_when_it_goes_on(self: server._Client, *arguments: Any) -> None:
            goes_on.wait()
            following(self, *arguments)

        monkeypatch.setattr(server._Client, "next", next_when_it_goes_on)

        @contextmanager
        def stalled() -> Iterator[None]:
            goes_on.clear()
            try:
                yield
            finally:
                goes_on.set()

        return stalled

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
        return fail_methods(monkeypatch, {Line: ("answer", "fill")})


# The store outlives the adapter, so the probe for durability passes.  It is not promised: it evicts, and may be started again.
@pytest.mark.filterwarnings("ignore:.*does not declare DURABLE:lmcache_devkit.UndeclaredCapability")
class TestInMemory(LmSetup, L2AdapterSuite):
    pass


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not declare DURABLE:lmcache_devkit.UndeclaredCapability")
class TestInFiles(LmSetup, L2AdapterSuite):
    payload_bytes_max = 4 * 2**20
    open_close_rounds = 20

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Running]:
        with running(folder=tmp_path / "values") as store:
            yield store
