"""Pages at a real server, without an engine."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from demo.server_process import ServerProcess
from lmcache_client import EngineChannel, LayoutPart, LMCacheError
from lmcache_sglang.page_link import PageLink, digests
from lmcache_sglang.settings import LinkerSettings

LAYOUT = LayoutPart(2, 2, 16, 8, "float32")
PAGE_BYTES = 2 * 2 * 16 * 8 * 4
SECONDS = 30.0
SLOW = {"type": "mock", "max_size_gb": 0.01, "mock_bandwidth_gb": 4096 / 2**30}
"""Two pages, a header with each, take three seconds there."""


def hashes(prompt: str, count: int) -> list[bytes]:
    found, last = [], prompt.encode()
    for _ in range(count):
        last = hashlib.sha256(last).digest()
        found.append(last)
    return found


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(["--l1-size-gb", "0.1"], tmp_path / "server.log")
    server.start()
    yield server
    if server.running:
        server.stop()
    server.kill()


@pytest.fixture
def link(server: ServerProcess) -> Iterator[PageLink]:
    link = a_link(server)
    yield link
    link.close()


def a_link(server: ServerProcess, name: str = "model") -> PageLink:
    settings = LinkerSettings.read({"port": server.port, "heartbeat_seconds": 0.5, "timeout_seconds": 5.0})
    return PageLink(settings, name, LAYOUT)


def store(link: PageLink, pages: list[bytes], fill: int) -> list[int]:
    with link.writing(pages) as (missing, places):
        for place in places:
            place[:] = bytes([fill]) * PAGE_BYTES
    return missing


def wait_ready(link: PageLink, ready: bool = True) -> None:
    deadline = time.monotonic() + SECONDS
    while link.is_ready() is not ready:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_registered(server: ServerProcess) -> None:
    deadline = time.monotonic() + SECONDS
    while not server.status()["workers"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def held(server: ServerProcess) -> int:
    status = server.status()
    return int(status["l1"]["held"] + status["lookups_open"] + status["modules"]["engine_driven"]["reads_prepared"])


def freeze(server: ServerProcess) -> None:
    """Returns when none of its threads runs any more."""
    server.pause()
    deadline = time.monotonic() + SECONDS
    threads = Path(f"/proc/{server.pid}/task")
    while any(each.read_text().rpartition(")")[2].split()[0] != "T" for each in threads.glob("*/stat")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_nothing_held(server: ServerProcess) -> None:
    deadline = time.monotonic() + SECONDS
    while held(server):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_page_hashes_are_sha_256_and_each_is_there_once() -> None:
    right = [each.hex() for each in hashes("a", 2)]
    assert digests(right) == hashes("a", 2)
    for wrong, said in {
        "00" * 16: "has 16 bytes; a SHA-256 has 32",
        "no hash": "'no hash' is not hexadecimal",
        right[0]: "there twice",
    }.items():
        with pytest.raises(ValueError, match=said):
            digests([*right, wrong])


def test_what_was_stored_is_found_and_read(server: ServerProcess, link: PageLink) -> None:
    pages = hashes("a", 5)
    assert link.lookup("r0", pages) == 0
    assert store(link, pages[:3], 7) == [0, 1, 2]
    assert store(link, pages, 8) == [3, 4]
    assert link.count(pages) == 5
    assert link.lookup("r1", [*pages[2:], *hashes("b", 1)]) == 3, "a tail, as what an engine lacks"
    with link.reading("r1", pages[2:]) as places:
        assert [bytes(place) for place in places] == [bytes([fill]) * PAGE_BYTES for fill in (7, 8, 8)]
    link.end("r1")
    wait_nothing_held(server)


def test_another_model_and_another_page_size_find_nothing(server: ServerProcess, link: PageLink) -> None:
    pages = hashes("a", 2)
    store(link, pages, 1)
    other = a_link(server, "another")
    assert other.lookup("r1", pages) == 0
    other.close()
    assert link.lookup("r2", pages) == 2
    link.end("r2")


def test_a_block_that_raises_publishes_nothing(server: ServerProcess, link: PageLink) -> None:
    pages = hashes("c", 2)
    with pytest.raises(KeyError), link.writing(pages):
        raise KeyError("the copy failed")
    assert link.lookup("r1", pages) == 0
    wait_nothing_held(server)
    assert store(link, pages, 2) == [0, 1]


def test_a_copy_that_is_under_way_when_its_link_closes_touches_no_page_of_others(server: ServerProcess) -> None:
    late, other = a_link(server), a_link(server, "other")
    mine, theirs = hashes("a", 4), hashes("b", 100)
    with suppress(LMCacheError), late.writing(mine) as (_, places):
        late.close()
        late.close()
        store(other, theirs, 9)
        for place in places:
            place[:] = b"\xee" * PAGE_BYTES
    with pytest.raises(LMCacheError, match="there is no server"), late.writing(mine):
        pass
    assert other.lookup("r", theirs) == len(theirs)
    with other.reading("r", theirs) as found:
        assert {bytes(page) for page in found} == {b"\x09" * PAGE_BYTES}
    other.end("r")
    other.close()
    assert not server.status()["workers"], "the copy's end was the link's"
    wait_nothing_held(server)


def test_a_lookup_that_is_ended_holds_nothing(server: ServerProcess, link: PageLink) -> None:
    pages = hashes("d", 2)
    store(link, pages, 3)
    assert link.lookup("r1", pages) == 2
    assert held(server)
    link.end("r1")
    wait_nothing_held(server)


def test_pages_that_are_gone_are_an_error(link: PageLink) -> None:
    with pytest.raises(LMCacheError, match="are gone"), link.reading("r1", hashes("e", 1)):
        pass


def test_a_server_that_is_started_again_is_found_and_empty(server: ServerProcess, link: PageLink) -> None:
    pages = hashes("f", 2)
    store(link, pages, 4)
    server.kill()
    wait_ready(link, False)
    assert link.lookup("r1", pages) == 0
    server.start()
    wait_ready(link)
    assert link.lookup("r2", pages) == 0
    assert store(link, pages, 5) == [0, 1]
    with link.reading("r3", pages) as places:
        assert {bytes(place) for place in places} == {bytes([5]) * PAGE_BYTES}


def test_a_server_that_dies_while_pages_are_read_fails_the_read(server: ServerProcess, link: PageLink) -> None:
    pages = hashes("g", 2)
    store(link, pages, 6)

    def read() -> None:
        with link.reading("r1", pages) as places:
            server.kill()
            assert bytes(places[0]) == bytes([6]) * PAGE_BYTES, "the memory stays readable"

    with pytest.raises(LMCacheError):
        read()


def test_a_server_that_is_replaced_while_pages_are_written_gets_none_of_them(
    server: ServerProcess, link: PageLink
) -> None:
    pages = hashes("h", 2)

    def write() -> None:
        with link.writing(pages) as (_, places):
            server.kill()
            wait_ready(link, False)
            server.start()
            wait_ready(link)
            for place in places:
                place[:] = bytes(PAGE_BYTES)

    with pytest.raises(LMCacheError):
        write()
    assert link.lookup("r1", pages) == 0


def test_a_frozen_server_delays_one_lookup_and_no_more(server: ServerProcess, link: PageLink) -> None:
    pages = hashes("i", 2)
    store(link, pages, 7)
    freeze(server)
    resumed = threading.Timer(2.0, server.resume)
    resumed.start()
    begin = time.monotonic()
    assert [link.lookup(f"r{number}", pages) for number in range(20)] == [0] * 20
    assert time.monotonic() - begin < 1.8, "half a second, once"
    resumed.join()
    wait_ready(link)
    assert link.lookup("later", pages) == 2
    link.end("later")
    wait_nothing_held(server)


def test_a_server_that_is_frozen_for_longer_than_a_ping_waits_is_used_again(server: ServerProcess) -> None:
    settings = {"port": server.port, "heartbeat_seconds": 30, "timeout_seconds": 0.5, "lookup_timeout_ms": 100}
    link = PageLink(LinkerSettings.read(settings), "model", LAYOUT)
    pages = hashes("k", 1)
    store(link, pages, 7)
    freeze(server)
    assert link.lookup("r1", pages) == 0
    time.sleep(1)
    assert not link.is_ready()
    server.resume()
    wait_ready(link)
    assert link.lookup("r2", pages) == 1
    link.close()


def test_pages_of_a_slow_tier_are_waited_for_as_long_as_the_settings_say(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pages = hashes("q", 2)
    options = ["--l1-size-gb", "0.1", "--l2-adapter", json.dumps(SLOW)]
    with (
        ServerProcess(options, tmp_path / "server.log") as server,
        EngineChannel(f"tcp://127.0.0.1:{server.port}") as admin,
    ):
        patient, impatient = (
            PageLink(
                LinkerSettings.read(
                    {"port": server.port, "prefetch_timeout_seconds": seconds, "lookup_timeout_ms": 2_000}
                ),
                "model",
                LAYOUT,
            )
            for seconds in (60, 0.3)
        )
        store(patient, pages, 7)
        server.wait_written(60)
        admin.clear()
        assert [impatient.lookup(f"r{number}", pages) for number in range(2)] == [0, 0]
        assert caplog.text.count("took more than 0.3 s to read pages from another tier") == 1, "the second did not wait"
        assert impatient.is_ready()
        admin.clear()
        assert patient.lookup("r2", pages) == 2
        with patient.reading("r2", pages) as places:
            assert {bytes(place) for place in places} == {bytes([7]) * PAGE_BYTES}
        patient.end("r2")
        wait_nothing_held(server)
        for link in (patient, impatient):
            link.close()


def an_impatient_link(server: ServerProcess) -> PageLink:
    settings = {"port": server.port, "heartbeat_seconds": 30, "timeout_seconds": 1.0}
    return PageLink(LinkerSettings.read(settings), "model", LAYOUT)


@pytest.mark.parametrize("when", ["before the read", "within it"])
def test_a_server_that_freezes_fails_a_read_and_holds_nothing_for_it_later(server: ServerProcess, when: str) -> None:
    link, pages = an_impatient_link(server), hashes("l", 2)
    store(link, pages, 7)
    assert link.lookup("r1", pages) == 2
    if when == "before the read":
        freeze(server)
    with pytest.raises(LMCacheError), link.reading("r1", pages):
        freeze(server)
    link.end("r1")
    server.resume()
    wait_nothing_held(server)
    wait_ready(link)
    assert link.lookup("r2", pages) == 2
    link.close()


@pytest.mark.parametrize("when", ["before the store", "within it"])
def test_a_server_that_freezes_fails_a_store_and_the_pages_can_be_stored_later(
    server: ServerProcess, when: str
) -> None:
    link, pages = an_impatient_link(server), hashes("m", 2)
    if when == "before the store":
        freeze(server)

    def write() -> None:
        with link.writing(pages) as (_, places):
            for place in places:
                place[:] = bytes([5]) * PAGE_BYTES
            freeze(server)

    with pytest.raises(LMCacheError):
        write()
    server.resume()
    wait_ready(link)
    wait_nothing_held(server)
    store(link, pages, 5)
    with link.reading("r1", pages) as places:
        assert {bytes(place) for place in places} == {bytes([5]) * PAGE_BYTES}
    link.close()


def test_a_read_after_another_server_has_come_gives_nothing_of_that_server(
    server: ServerProcess, link: PageLink
) -> None:
    """Its slots are at the same places as the first one's."""
    pages, others = hashes("n", 2), hashes("o", 2)
    store(link, pages, 7)
    assert link.lookup("r1", pages) == 2
    server.kill()
    server.start()
    with pytest.raises(LMCacheError), link.reading("r1", pages):
        pass
    wait_registered(server)
    wait_ready(link)
    assert store(link, others, 9) == [0, 1]
    with pytest.raises(LMCacheError, match="are gone"), link.reading("r1", pages):
        pass
    wait_nothing_held(server)


def test_a_server_that_is_replaced_while_pages_are_read_fails_the_read(server: ServerProcess, link: PageLink) -> None:
    pages = hashes("p", 2)
    store(link, pages, 7)

    def read() -> None:
        with link.reading("r1", pages) as places:
            server.kill()
            wait_ready(link, False)
            server.start()
            wait_ready(link)
            store(link, pages, 9)
            assert bytes(places[0]) == bytes([7]) * PAGE_BYTES, "those of the server that has died"

    with pytest.raises(LMCacheError, match="started again"):
        read()
    wait_nothing_held(server)


def test_without_a_server_it_begins_and_finds_one_later(server: ServerProcess) -> None:
    server.stop()
    link = a_link(server)
    assert not link.is_ready()
    assert link.lookup("r1", hashes("j", 1)) == 0
    server.start()
    wait_ready(link)
    assert store(link, hashes("j", 1), 1) == [0]
    link.close()
