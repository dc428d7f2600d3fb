"""`--l1-verify-reads`: what an engine of the same user writes over published bytes is never served."""

from __future__ import annotations

import logging
import threading

import pytest

from core.tests.server.cache_resource import wait_until
from core.tests.server.conftest import StartServer
from core.tests.server.test_engine_driven import CHUNKS, TOKENS, quiet
from lmcache_core.app.server import Server
from lmcache_core.l1.read_checks import ReadChecks
from lmcache_devkit.fake_engine import FakeEngine

BAD = 1
"""The chunk that is overwritten."""


def overwrite(engine: FakeEngine, chunk: int = BAD) -> bytes:
    """A process of the server's user finds the bytes of a chunk in the segment, and writes others there.  Returns them."""
    assert engine.segment is not None
    content = engine.content(TOKENS, chunk)
    at = engine.segment.find(content)
    assert at >= 0
    assert engine.segment.find(content, at + 1) < 0
    engine.segment[at + 1000] ^= 1
    return engine.segment[at : at + len(content)]


def right(engine: FakeEngine, end: int = CHUNKS) -> list[bytes]:
    return [engine.content(TOKENS, chunk) for chunk in range(end)]


def dropped(server: Server) -> int:
    """As metrics say."""
    count = server.counts().l1.overwritten
    assert count is not None
    return count


def conditions(server: Server) -> list[str]:
    return [each.condition.name for each in server.conditions()]


def unread(server: Server) -> dict[str, int]:
    (counts,) = server._parts.tiers.storage.counters.snapshot().values()
    return counts.unread_chunks


def test_without_the_option_overwritten_bytes_are_served(start_server: StartServer) -> None:
    """What the option is for, and that the attack of these tests works."""
    server = start_server()
    with FakeEngine(server.info.engine_endpoint) as victim, FakeEngine(server.info.engine_endpoint) as attacker:
        assert victim.store(TOKENS)
        wrong = overwrite(attacker)
        found = victim.retrieve(TOKENS)
        assert found is not None
        assert found[BAD] == wrong
    assert server._parts.tiers.cache.checks is None


def test_what_another_engine_has_overwritten_is_a_miss_and_is_found_no_more(
    start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_server(l1_verify_reads=True)
    with FakeEngine(server.info.engine_endpoint) as victim, FakeEngine(server.info.engine_endpoint) as attacker:
        assert victim.store(TOKENS)
        assert victim.lookup(TOKENS, "first") == CHUNKS
        assert victim.retrieve(TOKENS, "first") == right(victim)
        overwrite(attacker)
        with caplog.at_level(logging.ERROR):
            assert victim.lookup(TOKENS, "second") == CHUNKS, "a lookup reads no bytes"
            assert victim.retrieve(TOKENS, "second") is None
        assert victim.lookup(TOKENS, "third") == BAD
        assert victim.retrieve(TOKENS, "third", 0, BAD * 16) == right(victim, BAD)
        assert dropped(server) == 1
        assert unread(server) == {"overwritten": CHUNKS}
        assert [record for record in caplog.records if "overwritten" in record.message]
        wait_until(lambda: "l1_objects_overwritten" in conditions(server))
        for request in ("first", "second", "third"):
            victim.end(request)
        wait_until(lambda: server.status()["l1"]["held"] == 0)
        assert victim.store(TOKENS, "again"), "it can be stored anew"
        assert victim.retrieve(TOKENS, "fourth") == right(victim)
        assert dropped(server) == 1
        victim.end("fourth")
    wait_until(lambda: server.status()["l1"]["held"] == 0)
    quiet(server)


def test_what_was_stored_in_band_is_compared_and_what_is_read_in_band_too(start_server: StartServer) -> None:
    server = start_server(l1_verify_reads=True)
    endpoint = server.info.engine_endpoint
    with FakeEngine(endpoint, maps_memory=False) as victim, FakeEngine(endpoint) as attacker:
        assert victim.store(TOKENS)
        key = victim.key(TOKENS, "r", 0, victim.whole(TOKENS))
        assert victim.worker.prepare_retrieve(key, victim.instance_id).success
        assert victim.worker.commit_retrieve(key, victim.instance_id)
        overwrite(attacker)
        reply = victim.worker.prepare_retrieve(key, victim.instance_id)
        assert (reply.success, reply.data) == (False, b"")
        assert dropped(server) == 1


def test_what_was_loaded_from_l2_is_compared_and_is_there_again_after_it_was_dropped(start_server: StartServer) -> None:
    server = start_server(l1_verify_reads=True, l2_adapter=({"type": "memory"},))
    with FakeEngine(server.info.engine_endpoint) as victim, FakeEngine(server.info.engine_endpoint) as attacker:
        assert victim.store(TOKENS)
        assert server._parts.tiers.store.drain(10)
        server._parts.tiers.storage.clear(force=True)
        assert victim.lookup(TOKENS, "first") == CHUNKS
        overwrite(attacker)
        assert victim.retrieve(TOKENS, "first") is None
        assert unread(server) == {"overwritten": CHUNKS}
        victim.end("first")
        assert victim.lookup(TOKENS, "second") == CHUNKS, "L2 has the right bytes"
        assert victim.retrieve(TOKENS, "second") == right(victim)
        assert dropped(server) == 1


def test_many_bytes_are_read_on_no_router_thread(start_server: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = ReadChecks._read

    def noted(checks: ReadChecks, slot: int) -> bytes:
        reads.append(threading.current_thread().name)
        return read(checks, slot)

    monkeypatch.setattr(ReadChecks, "_read", noted)
    server = start_server(l1_verify_reads=True)
    with FakeEngine(server.info.engine_endpoint) as small:
        assert small.store(TOKENS[:16])
        assert small.retrieve(TOKENS[:16]) is not None
    (router,) = set(reads)  # that little is read where the request came in
    reads.clear()
    with FakeEngine(server.info.engine_endpoint, model="large", hidden=4096) as large:
        assert large.store(TOKENS[:16])
        assert large.retrieve(TOKENS[:16]) is not None
    assert len(reads) == 2
    assert router not in reads
