"""Routes beside the page that coordinators are known by: aliases, queries of routers and peers, pins, metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lmcache_core import HashChain, KeySpace
from lmcache_fleet.families import Family, chunk_hashes, vector_of
from lmcache_fleet.messages import (
    HASH_BYTES,
    PAGE_KEYS_MAX,
    DeleteKeys,
    JournalPage,
    KeysOf,
    Kind,
    Lookup,
    Run,
    decode_lookup_reply,
    decode_reply,
    encode,
)
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess

CHUNK = 16
FAMILY = Family(CHUNK, HashChain.BLAKE3)
SPACE = KeySpace("llama##0123456789abcdef", 0x01000100, 0, "a", CHUNK, HashChain.BLAKE3, bytes(16))
TOKENS = list(range(4 * CHUNK + 3))
HASHES = chunk_hashes(FAMILY, TOKENS)
GIB = 2**30


def hashes(begin: int, end: int) -> bytes:
    return HASHES[begin * HASH_BYTES : end * HASH_BYTES]


class Poster:
    """Sends pages as members do."""

    def __init__(self, coordinator: CoordinatorProcess, name: str, **about: Any) -> None:
        self.coordinator, self.name = coordinator, name
        body = {"instance_id": name, "ip": "10.0.0.7", "http_port": 80, "mq_port": 5555, "incarnation": "1", **about}
        assert coordinator.ask("POST", "/instances", body).status == 200
        self.nexts: dict[str, int] = {}

    def send(self, source: str, *runs: Run, shared: bool = False, space: KeySpace = SPACE) -> Any:
        first = self.nexts.get(source, 0)
        page = JournalPage(
            instance=self.name,
            incarnation="1",
            source=source,
            backend="redis" if shared else "",
            shared=shared,
            spaces=(space.tail,),
            runs=runs,
            first=first,
        )
        reply = self.coordinator.ask("POST", "/fleet/journal", encode(page))
        assert reply.status == 200, reply
        self.nexts[source] = first + page.keys
        answer = decode_reply(reply.body)
        assert answer.expects[source] == self.nexts[source]
        return answer


def stored(begin: int, end: int, size: int = 1000) -> Run:
    return Run(Kind.STORE, 0, size, hashes(begin, end))


@pytest.fixture
def coordinator(tmp_path: Any) -> Iterator[CoordinatorProcess]:
    with CoordinatorProcess(tmp_path, "--eviction-check-interval", "0.2") as running:
        yield running


def test_routers_and_peers_find_prompts(coordinator: CoordinatorProcess) -> None:
    one, two = Poster(coordinator, "one"), Poster(coordinator, "two", p2p_advertised_url="tcp://10.0.0.8:1")
    one.send("l1", stored(0, 2))
    two.send("l1", stored(1, 4))
    two.send("disk", stored(0, 1))
    two.send("redis", stored(2, 3), shared=True)

    def matched(longest: int, memory: int, disk: int, same: bool = True) -> dict[str, Any]:
        return {
            "longest_matched": longest * CHUNK,
            "GPU": 0,
            "DP": {"0": longest * CHUNK},
            "CPU": memory * CHUNK,
            "DISK": disk * CHUNK,
            "chunk_tokens": CHUNK,
            "chain": "blake3",
            "same_family": same,
        }

    both = {"default": {"one": matched(2, 2, 0), "two": matched(4, 0, 1)}}
    asked: dict[str, Any] = {"model": "llama", "token_ids": TOKENS, "cache_salt": "a"}
    by_hash = {"model_name": "llama", "cache_salt": "a", "block_size": CHUNK, "seq_hashes": _hex(HASHES)}
    assert coordinator.ask("POST", "/query", asked) == (200, both)
    assert coordinator.ask("POST", "/query_by_hash", by_hash) == (200, both)
    whole_name = {**asked, "model": SPACE.model_name, "tenant_id": "t", "instance_id": "one", "lora_name": None}
    assert coordinator.ask("POST", "/query", whole_name) == (200, {"t": {"one": both["default"]["one"]}})
    other = coordinator.ask("POST", "/query_by_hash", {**by_hash, "block_size": 256}).body["default"]
    assert other == {"one": matched(0, 0, 0, same=False), "two": matched(0, 0, 0, same=False)}
    for salt in ("", "b"):
        assert coordinator.ask("POST", "/query", {**asked, "cache_salt": salt}).body == {"default": {}}
    for wrong in (
        {"model": "llama"},
        {**asked, "chunk_hashes": []},
        {"model": "llama", "chunk_hashes": _hex(HASHES)},
        {**asked, "token_ids": [-1]},
        {**asked, "token_ids": [2**32]},
        {**asked, "lora_name": "x"},
    ):
        assert coordinator.ask("POST", "/query", wrong).status == 422, wrong
    assert coordinator.ask("POST", "/query_by_hash", {**by_hash, "seq_hashes": ["ab"]}).status == 422

    # Another space comes first and has nothing; the keys of all parts are counted through.
    parts = (KeysOf(replace(SPACE, object_group=1).tail, HASHES[: 2 * HASH_BYTES]), KeysOf(SPACE.tail, HASHES))
    reply = coordinator.ask("POST", "/fleet/lookup", encode(Lookup(parts)))
    found = decode_lookup_reply(reply.body)
    ends, places = memoryview(found.ends).cast("I").tolist(), memoryview(found.places).cast("H").tolist()
    cuts = zip([0, *ends], ends, strict=False)
    owners = [{(found.owners[p].instance, found.owners[p].source) for p in places[a:b]} for a, b in cuts]
    assert owners == [
        set(),
        set(),
        {("one", "l1"), ("two", "disk")},
        {("one", "l1"), ("two", "l1")},
        {("two", "l1")},
        {("two", "l1")},
    ]
    address = next(each for each in found.owners if each.instance == "two")
    assert (address.ip, address.mq_port, address.p2p_advertised_url) == ("10.0.0.7", 5555, "tcp://10.0.0.8:1")
    half = KeysOf(SPACE.tail, bytes((PAGE_KEYS_MAX // 2 + 1) * HASH_BYTES))
    for bad in (
        b"",
        b"\x92",
        msgspec.msgpack.encode({"parts": [[b"", b""]]}),
        encode(Lookup((KeysOf(SPACE.tail, b"x"),))),
        encode(Lookup((half, half))),
    ):
        assert coordinator.ask("POST", "/fleet/lookup", bad).status == 422
    assert coordinator.ask("POST", "/fleet/lookup", encode(Lookup((half,)))).status == 200
    assert coordinator.ask("POST", "/fleet/lookup", encode(Lookup(()))).status == 200

    question = {"model_name": "llama", "token_ids": TOKENS, "cache_salt": "a", "world_size": 1}
    answer = coordinator.ask("POST", "/directory/lookup", question).body
    assert answer["chunks"] == 4
    assert [len(each["placements"]) for each in answer["results"]] == [2, 2, 2, 1]
    shared = answer["results"][2]["placements"]
    assert {"instance_id": "", "tier": "l2", "backend": "redis", "worker": 0} in shared
    key = {"chunk_hash_hex": hashes(3, 4).hex(), "model_name": SPACE.model_name, "kv_rank": SPACE.kv_rank}
    by_key = coordinator.ask("POST", "/directory/lookup", {"keys": [{**key, "cache_salt": "a"}]}).body
    assert (by_key["chunks"], len(by_key["results"])) == (1, 1)
    assert coordinator.ask("POST", "/directory/lookup", {"keys": [], "token_ids": []}).status == 422

    usage = coordinator.ask("GET", "/instances/usage").body
    modules = {each["instance_id"]: {m["backend"]: m["keys"] for m in each["modules"]} for each in usage["instances"]}
    assert modules == {"one": {"l1": 2}, "two": {"l1": 3, "disk": 1}}
    assert [(m["backend"], m["keys"], m["used_bytes"]) for m in usage["shared_modules"]] == [("redis", 1, 1000)]
    assert coordinator.ask("GET", "/instances/one/usage").body == usage["instances"][0]
    assert coordinator.ask("GET", "/instances/none/usage").status == 404
    keys = coordinator.ask("GET", "/directory/keys?limit=10").body
    assert (keys["total"], keys["keys"][0]["size_bytes"], keys["keys"][0]["backend"]) == (1, 1000, "redis")
    assert coordinator.ask("GET", "/directory/keys?offset=1").body == {"total": 1, "keys": []}
    assert coordinator.ask("GET", "/directory/keys?backend=none").body == {"total": 0, "keys": []}
    for query in ("tier=l1", "tier=l1&instance_id=one&offset=1", "instance_id=one", "page_token=x", "tier=all"):
        assert coordinator.ask("GET", f"/directory/keys?{query}").status == 422, query
    assert coordinator.ask("GET", "/directory/keys?tier=l1&instance_id=none").status == 404
    coordinator.ask("POST", "/instances", {"instance_id": "portless"})
    unreachable = coordinator.ask("GET", "/directory/keys?tier=l1&instance_id=portless")
    assert (unreachable.status, "no port" in unreachable.body["detail"]) == (502, True)


def test_newer_names_mean_the_same(coordinator: CoordinatorProcess) -> None:
    ok = {"cache_salt": "a", "limit_gb": 2.0, "status": "ok"}
    assert coordinator.ask("PUT", "/quota/a", {"limit_gb": 2.0, "tier": "l2"}) == (200, ok)
    assert coordinator.ask("GET", "/quota/a") == coordinator.ask("GET", "/l2/status/a")
    assert coordinator.ask("GET", "/quota/a").body["quota_limit_gb"] == 2.0
    assert coordinator.ask("GET", "/quota") == coordinator.ask("GET", "/l2/status")
    assert coordinator.ask("GET", "/quota/config") == (200, {"default_limit_gb": 0.0})
    for default in (None, 1.5, 0.0):
        config = {"default_limit_gb": default}
        assert coordinator.ask("PUT", "/quota/config", {**config, "tier": "l2"}) == (200, config)
        assert coordinator.ask("GET", "/quota/config") == (200, config)
    for wrong in ({}, {"default_limit_gb": -1}, {"default_limit_gb": "none"}, {"default_limit_gb": 1, "tier": "l1"}):
        assert coordinator.ask("PUT", "/quota/config", wrong).status in (400, 422)
    removed = {"cache_salt": "a", "limit_gb": 0.0, "status": "removed"}
    assert coordinator.ask("DELETE", "/quota/a") == (200, removed)
    key = {"chunk_hash_hex": "aa", "model_name": "m", "kv_rank": 0, "object_group_id": 0, "cache_salt": "a"}
    coordinator.ask("PUT", "/quota/a", {"limit_gb": 2.0})

    def batch(seq: int, kind: str, **more: Any) -> dict[str, Any]:
        about = {
            "instance_id": "new",
            "incarnation": "i1",
            "seq": seq,
            "event_type": kind,
            "tier": "l2",
            "shared": True,
        }
        return {**about, "ts": 1.5, "entries": [{"key": key, "size_bytes": 512, "token_ids": []}], **more}

    def post(*batches: dict[str, Any]) -> Any:
        reply = coordinator.ask("POST", "/events", {"batches": list(batches)})
        assert reply.status == 200, reply
        return reply.body, round(coordinator.ask("GET", "/quota/a").body["usage_gb"] * GIB)

    assert post(batch(1, "store"), batch(1, "store")) == ({"applied": 1, "duplicates": 1, "stale": 0}, 512)
    assert post(batch(2, "access"), batch(3, "config")) == ({"applied": 2, "duplicates": 0, "stale": 0}, 512)
    assert post(batch(4, "delete", tier="l1"), batch(5, "delete", shared=False))[1] == 512, "only shared L2 is counted"
    again = batch(1, "delete", incarnation="i2")
    assert post(again, batch(9, "store")) == ({"applied": 1, "duplicates": 0, "stale": 1}, 0)
    assert coordinator.ask("POST", "/events", {"batches": [batch(2, "store"), batch(0, "store")]}).status == 422


def victims(coordinator: CoordinatorProcess) -> set[bytes]:
    """What one is to delete, as soon as that is something."""
    for _ in range(200):
        reply = decode_reply(coordinator.ask("POST", "/fleet/heartbeat/one").body)
        deletes = b"".join(each.hashes for each in reply.commands if isinstance(each, DeleteKeys))
        if deletes:
            return {deletes[at : at + HASH_BYTES] for at in range(0, len(deletes), HASH_BYTES)}
        time.sleep(0.1)  # until an interval has passed
    raise AssertionError("nothing is evicted")


@pytest.mark.parametrize(("policy", "goes"), [("LRU", 0), ("MRU", 3)])
def test_the_policy_that_is_named_says_what_goes_first(tmp_path: Path, policy: str, goes: int) -> None:
    with CoordinatorProcess(tmp_path, "--eviction-check-interval", "0.2", "--eviction-policy", policy) as coordinator:
        one = Poster(coordinator, "one")
        for number in range(4):
            one.send("redis", stored(number, number + 1), shared=True)
        coordinator.ask("PUT", "/l2/quota/a", {"limit_gb": 3000 / GIB})
        assert victims(coordinator) == {hashes(goes, goes + 1)}


def test_pinned_prompts_are_never_victims(coordinator: CoordinatorProcess) -> None:
    one = Poster(coordinator, "one")
    one.send("redis", stored(0, 4), shared=True)
    pinned = {"model_name": "llama", "token_ids": TOKENS[: 2 * CHUNK], "cache_salt": "a"}
    assert coordinator.ask("POST", "/cache/pins", pinned) == (200, {"requested": 2, "affected": 2, "status": "ok"})
    assert coordinator.ask("POST", "/cache/pins", pinned).body["affected"] == 2
    listed = coordinator.ask("GET", "/cache/pins").body
    assert listed["total"] == 2
    assert {(each["key"]["chunk_hash_hex"], each["pin_count"]) for each in listed["pins"]} == {
        (each, 2) for each in _hex(hashes(0, 2))
    }
    coordinator.kill()
    coordinator.start()
    assert coordinator.ask("GET", "/cache/pins").body == listed, "pins survive"
    again = Poster(coordinator, "one")
    while not coordinator.ask("GET", "/conditions").body["leader"]:
        time.sleep(0.1)  # until the lease of the one that was killed has ended
    coordinator.ask("PUT", "/l2/quota/a", {"limit_gb": 0})
    again.send("redis", stored(0, 4), shared=True)
    assert victims(coordinator) == {hashes(2, 3), hashes(3, 4)}
    coordinator.ask("DELETE", "/cache/pins", pinned)
    assert coordinator.ask("DELETE", "/cache/pins", pinned).body["affected"] == 2
    assert coordinator.ask("DELETE", "/cache/pins", pinned).body["affected"] == 0
    assert coordinator.ask("GET", "/cache/pins").body == {"total": 0, "pins": []}


def test_another_chain_is_said_and_logged(coordinator: CoordinatorProcess) -> None:
    said = {"chunk_tokens": CHUNK, "chain": "blake3", "test_vector": vector_of(FAMILY)}
    for name in ("one", "two"):
        Poster(coordinator, name, **said).send("l1", stored(0, 1))
    assert "in its own way" not in coordinator.log.read_text()
    Poster(coordinator, "odd", **{**said, "test_vector": "00" * 32}).send("l1", stored(0, 1))
    assert "in its own way" in coordinator.log.read_text()
    found = coordinator.ask("POST", "/query", {"model": "llama", "token_ids": TOKENS, "cache_salt": "a"}).body[
        "default"
    ]
    assert {name: each["same_family"] for name, each in found.items()} == {"one": True, "two": True, "odd": False}


def test_counts_and_their_equations(coordinator: CoordinatorProcess) -> None:
    one = Poster(coordinator, "one")
    one.send("l1", stored(0, 3))
    one.nexts["l1"] = 1
    page = JournalPage(
        instance="one", incarnation="1", source="l1", spaces=(SPACE.tail,), runs=(stored(0, 2),), first=0
    )
    assert coordinator.ask("POST", "/fleet/journal", encode(page)).status == 200  # again
    gap = msgspec.structs.replace(page, first=50)
    assert coordinator.ask("POST", "/fleet/journal", encode(gap)).status == 200
    coordinator.ask("PUT", "/l2/quota/we%22ird", {"limit_gb": 1})
    lines = coordinator.ask("GET", "/metrics").body.decode().splitlines()
    values = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def keys(outcome: str) -> float:
        return values[f'lmcache_coordinator_keys_total{{outcome="{outcome}"}}']

    assert (keys("applied"), keys("known"), keys("refused")) == (3, 2, 2)
    assert values["lmcache_coordinator_pages_total"] == 3
    assert values["lmcache_coordinator_pages_after_gap_total"] == 1
    assert values['lmcache_coordinator_placements{instance="one",source="l1"}'] == 3
    assert values['lmcache_coordinator_quota_bytes{cache_salt="we\\"ird"}'] == GIB
    assert values["lmcache_coordinator_instances"] == 1
    assert values["lmcache_coordinator_leader"] == 1
    named = {line.split(" ")[2] for line in lines if line.startswith("# TYPE")}
    assert {name.partition("{")[0] for name in values} <= named


def test_a_page_of_too_many_keys_is_refused(coordinator: CoordinatorProcess) -> None:
    Poster(coordinator, "one")
    run = Run(Kind.STORE, 0, 1, bytes(HASH_BYTES) * (PAGE_KEYS_MAX + 1))
    page = JournalPage(instance="one", incarnation="1", source="l1", spaces=(SPACE.tail,), runs=(run,), first=0)
    assert coordinator.ask("POST", "/fleet/journal", encode(page)).status == 422
    assert coordinator.ask("GET", "/directory/stats").body["keys_by_location"] == []


def _hex(packed: bytes) -> list[str]:
    return [packed[at : at + HASH_BYTES].hex() for at in range(0, len(packed), HASH_BYTES)]
