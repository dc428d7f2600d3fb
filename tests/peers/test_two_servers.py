"""The second server answers from the first one's memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.site import CHUNK_TOKENS, Fleet, prompt, until


@pytest.fixture(scope="module", params=["shm", "tcp", "nixl"])
def channel(request: pytest.FixtureRequest) -> str:
    """The fastest of one machine is shm."""
    if request.param == "nixl":
        pytest.importorskip("nixl", reason="no build of NIXL is installed")
    return str(request.param)


@pytest.fixture(scope="module")
def fleet(channel: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    engine = {"shm": "auto"}.get(channel, channel)
    options = ["--p2p-transfer-engine", engine, "--p2p-lookup-timeout", "10"]  # a busy machine connects slowly
    if channel == "nixl":
        options += ["--offer-settings", '{"transfer_channel:nixl": {"trusted_network": true}}']
    with Fleet(tmp_path_factory.mktemp("fleet"), 2, *options) as fleet:
        yield fleet


def test_the_second_server_reads_what_the_first_one_has(fleet: Fleet, channel: str) -> None:
    one, two = fleet.servers
    tokens = prompt(1, 12)
    with one.engine() as first, two.engine() as second:
        fleet.store(first, one, [tokens])
        assert second.lookup(tokens) == 12
        assert second.retrieve(tokens) == [second.content(tokens, chunk) for chunk in range(12)]
        second.end()
        said = two.status()["reader"]["peers"]["s0"]
        assert (said["channel"], said["leased"], said["read"]) == (channel, 12, 12)
        until(lambda: one.status()["leases"] == 0)


def test_a_flipped_byte_in_the_owners_memory_is_a_miss(fleet: Fleet) -> None:
    """The header is sealed when a peer first asks; what changes from then on is found."""
    one, two = fleet.servers
    tokens = prompt(2, 4)
    with one.engine() as first, two.engine() as second:
        fleet.store(first, one, [tokens])
        assert second.lookup(tokens, "before") == 4
        second.end("before")
        before = two.status()["reader"]["peers"]["s0"].get("damaged", 0)
        one.flip(first.content(tokens, 2))
        assert second.lookup(tokens) == 2
        assert second.retrieve(tokens, end=2 * CHUNK_TOKENS) == [second.content(tokens, chunk) for chunk in range(2)]
        second.end()
        assert two.status()["reader"]["peers"]["s0"]["damaged"] > before


def test_another_salt_or_model_finds_nothing(fleet: Fleet) -> None:
    one, two = fleet.servers
    tokens = prompt(3, 4)
    with one.engine() as first, two.engine(salt="other") as salted, two.engine(layers=3) as larger:
        fleet.store(first, one, [tokens])
        assert salted.lookup(tokens) == 0
        assert larger.lookup(tokens) == 0


@pytest.mark.slow
def test_what_was_changed_before_a_peer_asked_is_a_miss_where_reads_are_verified(tmp_path: Path) -> None:
    with Fleet(tmp_path, 2, "--l1-verify-reads") as fleet:
        one, two = fleet.servers
        tokens = prompt(4, 4)
        with one.engine() as first, two.engine() as second:
            fleet.store(first, one, [tokens])
            one.flip(first.content(tokens, 1))
            assert second.lookup(tokens) == 1
