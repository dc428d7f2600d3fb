"""A Mooncake Store of the tests' own, in a network of its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context
from lmcache_l2_mooncake.adapter import MooncakeAdapter, open_mooncake
from lmcache_l2_mooncake.config import MooncakeSettings
from lmcache_l2_mooncake.store_client import StoreClient
from tests.remote.mooncake_master import LoopbackNamespace, MooncakeMaster, MooncakeMember, setup_of, why_not

OpenMooncake = Callable[..., MooncakeAdapter]
STORE_BYTES = 512 << 20


@pytest.fixture(scope="session")
def namespace() -> Iterator[LoopbackNamespace]:
    """One for the whole process: threads that the library keeps stay in the first one that they see."""
    if reason := why_not():
        pytest.skip(reason)
    namespace = LoopbackNamespace()
    yield namespace
    namespace.close()


@pytest.fixture(scope="module")
def inside(namespace: LoopbackNamespace) -> Iterator[None]:
    with namespace.entered():
        yield


@pytest.fixture(scope="module")
def master(inside: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeMaster]:
    """A master that the tests of one module share, whose store has the memory of another process."""
    folder = tmp_path_factory.mktemp("mooncake")
    master = MooncakeMaster(folder)
    member = MooncakeMember(master, folder, STORE_BYTES)
    try:
        master.start()
        member.start()
        yield master
    finally:
        member.kill()
        master.kill()


@pytest.fixture(scope="module")
def behind(master: MooncakeMaster) -> Iterator[StoreClient]:
    """A member of the same store, for what happens behind the adapter's back."""
    client = joined(master)
    yield client
    client.close()


def joined(master: MooncakeMaster, segment_bytes: int = 0) -> StoreClient:
    return StoreClient.open(
        setup_of(master, segment_bytes), (), needs_memory=False, logger=logging.getLogger("lmcache.tests")
    )


@pytest.fixture
def memory() -> BorrowedMemory:
    return BorrowedMemory()


@pytest.fixture
def open_here(inside: None, memory: BorrowedMemory) -> Iterator[OpenMooncake]:
    """`open_here(master, ...)` opens an adapter on that store; the test's end closes all of them."""
    opened: list[MooncakeAdapter] = []

    def open_here(master: MooncakeMaster, *, clock: Any = None, **settings: Any) -> MooncakeAdapter:
        given = settings_of(master) | settings
        opened.append(
            open_mooncake(MooncakeSettings.model_validate(given), adapter_context(memory, clock=clock, name="mooncake"))
        )
        return opened[-1]

    yield open_here
    for adapter in opened:
        adapter.close(30)


def settings_of(master: MooncakeMaster) -> dict[str, Any]:
    """A server that adds no memory."""
    return {"local_hostname": "127.0.0.1", "master_server_addr": master.address, "global_segment_size": 0}
