"""The equations of docs/operate/counts.md hold between real servers, whatever has happened to lookups and reads."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from itertools import count as count_from
from typing import Any

import pytest

from lmcache_core import HEADER_BYTES
from lmcache_core.app.cli import main
from plugins.p2p.tests.rig import assert_equations
from tests.peers.site import Fleet, PeerServer, prompt, until

CHUNKS = 8
LEASABLE = 200
"""Chunks, about, of `--p2p-max-leased-ratio`."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    # The address of the admin API, so that the command reaches it.
    options = ("--p2p-max-leased-ratio", "0.05", "--coordinator-advertise-ip", "127.0.0.1")
    with Fleet(tmp_path_factory.mktemp("fleet"), 2, *options) as fleet:
        yield fleet


def stored(fleet: Fleet, number: int, chunks: int = CHUNKS) -> list[int]:
    """A prompt that the first server has."""
    tokens = prompt(number, chunks)
    with fleet.servers[0].engine() as engine:
        fleet.store(engine, fleet.servers[0], [tokens])
    return tokens


def look_up(server: PeerServer, tokens: list[int]) -> int:
    with server.engine() as engine:
        found = engine.lookup(tokens)
        engine.end()
    return found


def count(server: PeerServer, what: str) -> Any:
    """Of the first server, at another one."""
    return server.status()["reader"]["peers"]["s0"][what]


def scraped(server: PeerServer) -> dict[tuple[str, ...], float]:
    """By name and the values of the labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.process.http_port}/metrics", timeout=20) as answer:
        lines = re.findall(r"^lmcache_peers_(\w+)(\{.*\})? (\S+)$", answer.read().decode(), re.MULTILINE)
    return {(name, *re.findall(r'="([^"]*)"', labels)): float(value) for name, labels, value in lines}


def test_what_is_found_and_read(fleet: Fleet) -> None:
    _, two = fleet.servers
    assert look_up(two, stored(fleet, 1)) == CHUNKS
    with two.engine() as engine:
        size = HEADER_BYTES + engine.layout.payload_bytes
    assert [count(two, each) for each in ("asked", "hit", "leased", "read")] == [CHUNKS] * 4
    assert count(two, "read_bytes") == CHUNKS * size
    assert 0 < count(two, "read_seconds") < 60


def test_what_is_there_no_longer(fleet: Fleet) -> None:
    one, two = fleet.servers

    numbers = count_from(100)

    def is_stale() -> bool:
        tokens = stored(fleet, next(numbers))
        with one.engine() as engine:
            engine.scheduler.clear(True)
        found = look_up(two, tokens)
        until(lambda: fleet.known("s0") == 0)
        return found == 0 and count(two, "stale") > 0

    until(is_stale)


def test_what_is_beyond_the_share_that_may_be_leased(fleet: Fleet) -> None:
    one, two = fleet.servers
    stale = count(two, "stale")
    assert 0 < look_up(two, stored(fleet, 2, 2 * LEASABLE)) < 2 * LEASABLE
    assert one.status()["owner"]["s1"]["limited"] >= LEASABLE // 2
    assert count(two, "refused") >= LEASABLE // 2
    assert count(two, "stale") == stale, "the directory is right: the owner has them"


def test_what_is_damaged(fleet: Fleet) -> None:
    one, two = fleet.servers
    tokens = stored(fleet, 3)
    assert look_up(two, tokens) == CHUNKS
    with one.engine() as engine:
        one.flip(engine.content(tokens, 2))
    assert look_up(two, tokens) == 2
    assert count(two, "damaged") == 1


def test_what_is_not_answered(fleet: Fleet) -> None:
    one, two = fleet.servers
    tokens = stored(fleet, 4)
    one.process.pause()
    try:
        assert look_up(two, tokens) == 0
    finally:
        one.process.resume()
    assert (count(two, "unanswered"), count(two, "failed")) == (CHUNKS, 1)
    until(lambda: look_up(two, tokens) == CHUNKS)


def test_what_is_refused(fleet: Fleet) -> None:
    """A reader that was dropped and has registered again is not known to the owner as a peer any more."""
    one, two = fleet.servers
    tokens, refused = stored(fleet, 5), count(two, "refused")
    two.process.pause()
    try:
        until(lambda: one.status()["members"] == 1)
    finally:
        two.process.resume()
    until(lambda: one.status()["members"] == 2)
    assert look_up(two, tokens) == 0
    assert count(two, "refused") == refused + CHUNKS
    until(lambda: look_up(two, tokens) == CHUNKS)


def test_everything_adds_up_and_metrics_say_the_same(fleet: Fleet) -> None:
    one, two = fleet.servers
    until(lambda: one.status()["leases"] == 0)
    reader, owner = two.status()["reader"], one.status()["owner"]
    total, peers = reader["counts"], reader["peers"]
    assert total["requested"] == total["hit"] + total["missed"]
    assert total["hit"] == sum(peer["hit"] for peer in peers.values())
    said = scraped(two)
    for name, peer in peers.items():
        assert_equations(name, peer)
        for outcome in ("leased", "stale", "refused", "unanswered"):
            assert said["lookup_objects_total", name, outcome] == peer[outcome]
        for outcome in ("read", "damaged", "unread"):
            assert said["read_objects_total", name, outcome] == peer[outcome]
        assert said["lookup_hits_total", name] == peer["hit"]
        assert said["read_size_bytes_total", name] == peer["read_bytes"]
        assert said["read_time_seconds_total", name] == pytest.approx(peer["read_seconds"])
        assert said["failures_total", name] == peer["failed"]
    of_owner = scraped(one)
    for name in owner.keys() - {""}:
        outcomes = ("leased", "absent", "limited")
        assert owner[name]["asked"] == sum(owner[name][outcome] for outcome in outcomes)
        for outcome in outcomes:
            assert of_owner["served_objects_total", name, outcome] == owner[name][outcome]
    assert owner["s1"]["asked"] >= peers["s0"]["asked"] - peers["s0"]["unanswered"] - peers["s0"]["refused"]


def test_the_coordinator_hears_what_was_found(fleet: Fleet) -> None:
    """With the next question."""
    _, two = fleet.servers
    assert look_up(two, prompt(9, 1)) == 0
    said = fleet.coordinator.ask("GET", "/metrics").body.decode()
    for name, parts in (("asked", ("leased", "stale")), ("stale", ("stale", "damaged"))):
        assert f'peers_{name}_total{{instance="s0"}} {sum(count(two, each) for each in parts)}\n' in said


def test_the_command_shows_them(fleet: Fleet, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = fleet.servers
    asked = ["fleet", "peers", "--url", fleet.coordinator.url]
    assert main([*asked, "--json"]) == 0
    servers = {each["instance_id"]: each for each in json.loads(capsys.readouterr().out)["servers"]}
    assert servers["s1"]["error"] is None
    assert servers["s1"]["peers"] == two.status()["reader"]["peers"]
    assert servers["s0"] == {"instance_id": "s0", "url": servers["s0"]["url"], "error": None, "peers": {}}
    assert main(asked) == 0
    head, row, line = capsys.readouterr().out.splitlines()
    assert (head.split()[:4], row.split()[:4]) == (["SERVER", "PEER", "CHANNEL", "OPEN"], ["s1", "s0", "shm", "yes"])
    assert len(head.split()) == 13
    assert line == "s0 has asked no peer yet"
    one.process.pause()
    try:
        assert main(asked) == 0
        assert re.search(r"^s0: http://127\.0\.0\.1:\d+ does not answer: ", capsys.readouterr().out, re.MULTILINE)
    finally:
        one.process.resume()
