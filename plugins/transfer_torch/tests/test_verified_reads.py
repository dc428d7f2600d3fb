"""`--l1-verify-reads` where the server copies: bytes that another engine has overwritten reach no worker's pages."""

from __future__ import annotations

import pytest

from demo.server_process import ServerProcess
from lmcache_core import ELSEWHERE
from lmcache_core.l1.read_checks import QUICK_BYTES, ReadChecks
from lmcache_devkit.fake_engine import FakeEngine
from plugins.transfer_torch.tests.conftest import StartServer, endpoint_of
from plugins.transfer_torch.tests.cue_site import YES, Site
from plugins.transfer_torch.tests.driven_engine import DrivenEngine
from plugins.transfer_torch.tests.test_swift_transfers import CHUNKS, OBJECT_BYTES, at_once

TOKENS = list(range(1000, 1000 + 100))
BAD = 1


def retrieve_overwritten(server: ServerProcess) -> tuple[list[list[bytes]] | None, bytes]:
    """What a worker is given after another engine wrote over one of its chunks, and what was written there."""
    with DrivenEngine(endpoint_of(server)) as victim, FakeEngine(endpoint_of(server), model="other") as attacker:
        assert victim.store(TOKENS)
        assert victim.retrieve(TOKENS, "before", 30) == victim.right(TOKENS)
        content = victim.content(TOKENS, BAD)
        assert attacker.segment is not None
        at = attacker.segment.find(content)
        assert at >= 0
        attacker.segment[at] ^= 1
        return victim.retrieve(TOKENS, "after", 30), attacker.segment[at : at + len(content)]


def test_without_the_option_they_do(start_server: StartServer) -> None:
    found, wrong = retrieve_overwritten(start_server())
    assert found is not None
    assert found[0][BAD] == wrong


def test_with_it_the_retrieve_is_a_miss(start_server: StartServer) -> None:
    server = start_server("--l1-verify-reads")
    found, _ = retrieve_overwritten(server)
    assert found is None
    with DrivenEngine(endpoint_of(server)) as engine:
        assert engine.lookup(TOKENS) == BAD
        assert engine.store(TOKENS, "again")
        assert engine.retrieve(TOKENS, "anew", 30) == engine.right(TOKENS)


@pytest.mark.parametrize("name", ["store", "retrieve"])
def test_many_bytes_are_for_another_thread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    site.device.swift_bytes = CHUNKS * OBJECT_BYTES
    site.bench.cache.checks = ReadChecks(site.bench.cache, print)
    assert site.store() == YES
    if name == "store":
        site.bench.storage.clear(True)
    assert CHUNKS * OBJECT_BYTES <= QUICK_BYTES
    assert at_once(site, name) == YES
    monkeypatch.setattr("lmcache_core.storage.manager.QUICK_BYTES", CHUNKS * OBJECT_BYTES - 1)
    site.bench.storage.clear(True)
    assert at_once(site, name) is ELSEWHERE
    site.close()
