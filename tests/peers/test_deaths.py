"""Owner, reader and coordinator are killed and stopped: lookups are answered, leases end, and the peer is used again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.server_process import ServerProcess
from tests.peers.site import Fleet, PeerServer, prompt, until

LEASE_SECONDS = 2
OPTIONS = ("--offer-settings", f'{{"service:p2p": {{"lease_seconds": {LEASE_SECONDS}}}}}')


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(tmp_path_factory.mktemp("fleet"), 2, *OPTIONS) as fleet:
        yield fleet


def balanced(server: PeerServer) -> bool:
    l1 = server.process.status()["l1"]
    assert l1["state_counts_add_up"]
    return (l1["held"], l1["quarantined"], server.status()["leases"]) == (0, 0, 0)


def hits(server: PeerServer, tokens: list[int], chunks: int) -> int:
    """Of one lookup, whose bytes are right; the engine's client raises where it is not answered in time."""
    with server.engine(timeout_seconds=5.0) as engine:
        found = engine.lookup(tokens)
        if found:
            end = found * engine.chunk_tokens
            assert engine.retrieve(tokens, end=end) == [engine.content(tokens, each) for each in range(found)]
        engine.end()
    assert found in (0, chunks)
    return found


def reads_and_keeps_nothing(server: PeerServer, tokens: list[int], chunks: int) -> None:
    """What a lookup read leaves L1 with the engine's last read, a moment later."""
    assert hits(server, tokens, chunks) == chunks
    until(lambda: not server.keys())


def stored(fleet: Fleet, server: PeerServer, number: int, chunks: int = 4) -> list[int]:
    tokens = prompt(number, chunks)
    with server.engine() as engine:
        fleet.store(engine, server, [tokens])
    return tokens


def test_a_stopped_owner_is_a_miss_and_used_again_when_it_goes_on(fleet: Fleet) -> None:
    one, two = fleet.servers
    tokens = stored(fleet, one, 10)
    reads_and_keeps_nothing(two, tokens, 4)
    one.process.pause()
    try:
        # A lookup of which the directory said nothing in time, on a busy machine, asks no peer.
        until(lambda: hits(two, prompt(10, 4), 4) == 0 and two.status()["reader"]["peers"]["s0"]["late"] >= 1)
        assert two.process.logs("a peer is not asked for 2 s peer=s0")
    finally:
        one.process.resume()
    until(lambda: hits(two, tokens, 4) == 4)
    until(lambda: balanced(one) and balanced(two))


def test_a_killed_owner_is_a_miss_and_used_again_when_it_is_back(fleet: Fleet) -> None:
    one, two = fleet.servers
    tokens = stored(fleet, one, 11)
    reads_and_keeps_nothing(two, tokens, 4)
    one.process.kill()
    assert hits(two, tokens, 4) == 0
    one.start()
    until(lambda: fleet.known("s0") == 0)  # the coordinator has seen that it is another one
    again = stored(fleet, one, 12)
    until(lambda: hits(two, again, 4) == 4)
    assert hits(two, tokens, 4) == 0, "its memory is new"
    until(lambda: balanced(one) and balanced(two))


def test_the_leases_of_a_killed_reader_end(fleet: Fleet) -> None:
    one, two = fleet.servers
    tokens = stored(fleet, one, 13, 40)
    with two.engine() as engine:
        assert engine.lookup(tokens, "never-ended") == 40
        two.process.kill()
    until(lambda: balanced(one))
    two.start()
    until(lambda: hits(two, tokens, 40) == 40)


def test_without_a_coordinator_lookups_are_answered(fleet: Fleet) -> None:
    one, two = fleet.servers
    tokens = stored(fleet, one, 14)
    fleet.coordinator.kill()
    assert hits(two, tokens, 4) == 0
    assert two.process.logs("directory of peers does not answer")
    with two.engine() as own:
        assert own.store(tokens)
    assert hits(two, tokens, 4) == 4, "its own memory"
    until(lambda: any(each["name"] == "peers_not_known" for each in two.process.status()["conditions"]))
    fleet.coordinator.start()
    others = stored(fleet, one, 15)
    until(lambda: hits(two, others, 4) == 4)
    until(lambda: balanced(one) and balanced(two))


def test_one_that_has_left_is_forgotten_within_a_heartbeat(fleet: Fleet) -> None:
    one, two = fleet.servers
    two.process.stop()
    until(lambda: one.status()["members"] == 1)
    two.start()
    until(lambda: one.status()["members"] == 2)


def test_nothing_listens_beyond_the_advertised_address(fleet: Fleet) -> None:
    said = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, timeout=20, check=True).stdout
    for server in fleet.servers:
        lines = [line for line in said.splitlines() if f"pid={server.process.pid}," in line]
        assert any(f"127.0.0.1:{server.peer_port} " in line for line in lines)
        assert [line for line in lines if not re.search(r"\s127\.0\.0\.1:\d+\s", line)] == []


def test_the_one_socket_of_the_abstract_name_space_is_that_of_shm(fleet: Fleet) -> None:
    said = subprocess.run(["ss", "-Hxlp"], capture_output=True, text=True, timeout=20, check=True).stdout
    for server in fleet.servers:
        lines = [line for line in said.splitlines() if f"pid={server.process.pid}," in line]
        assert [re.findall(r"\s(@?\S+)\s+\d+\s+\*", line)[0][:13] for line in lines] == ["@lmcache-p2p-"], lines


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try as another user")
def test_another_user_of_this_machine_gets_nothing(fleet: Fleet) -> None:
    """It may connect to the socket of shm, and is not answered; the segment is not its to open."""
    one, two = fleet.servers
    tokens = stored(fleet, one, 16)
    said = subprocess.run(["ss", "-Hxlp"], capture_output=True, text=True, timeout=20, check=True).stdout
    (name,) = re.findall(rf"@(lmcache-p2p-\w+).*pid={one.process.pid},", said)
    tries = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "client = socket.socket(socket.AF_UNIX); client.settimeout(1)\n"
        "client.connect('\\0' + sys.argv[1]); client.sendall(b'give me')\n"
        "try: heard = client.recv(4096)\n"
        "except OSError: heard = b''\n"
        "try: os.open(sys.argv[2], os.O_RDONLY); heard += b'segment'\n"
        "except PermissionError: pass\n"
        "print(heard)\n"
    )
    command = [sys.executable, "-c", tries, name, str(one.segment)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "b''\n"
    assert hits(two, tokens, 4) == 4, "members are served meanwhile"


def test_without_the_flag_nothing_listens_and_no_thread_starts(fleet: Fleet, tmp_path: Path) -> None:

    with ServerProcess(["--l1-size-gb", "0.05", "--coordinator-url", fleet.coordinator.url], tmp_path / "log") as alone:
        status = alone.status()
        assert "p2p" not in status["services"]
        assert [name for name in status["threads"] if "p2p" in name] == []
        names = [path.read_text().strip() for path in Path(f"/proc/{alone.pid}/task").glob("*/comm")]
        assert [name for name in names if "p2p" in name] == []
