"""Two processes, of which one reads the other's memory by UCX."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import ConfigError
from lmcache_nixl_agent.ucx import ucx_variables

SCRIPT = Path(__file__).parent / "ucx_peer.py"
TIMEOUT_SECONDS = 60.0
KIB, MIB = 2**10, 2**20
LOOPBACK = "127.0.0.1"
LOG = {"UCX_LOG_FILE": "stderr"}


class PeerProcess:
    def __init__(self, name: str, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), name, LOOPBACK], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env={**os.environ, **env},
        )  # fmt: skip

    def __call__(self, command: str, **arguments: Any) -> dict[str, Any]:
        self.ask(command, **arguments)
        return self.answer()

    def ask(self, command: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, arguments]) + "\n")
        self.process.stdin.flush()

    def has_answered(self, seconds: float) -> bool:
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        assert self.has_answered(TIMEOUT_SECONDS), "no answer"
        answered: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answered

    def end(self) -> int:
        """What the process ends with when its input does."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(TIMEOUT_SECONDS)


OpenPeer = Callable[[str], PeerProcess]


@pytest.fixture(params=["shared memory", "tcp"])
def open_peer(request: pytest.FixtureRequest) -> Iterator[OpenPeer]:
    pytest.importorskip("nixl", reason="no build of NIXL is installed")
    env = {"UCX_TLS": "tcp,self"} if request.param == "tcp" else {}
    opened: list[PeerProcess] = []

    def opening(name: str) -> PeerProcess:
        opened.append(PeerProcess(name, env))
        return opened[-1]

    yield opening
    for peer in opened:
        peer.process.kill()
        peer.process.wait(TIMEOUT_SECONDS)
        for pipe in (peer.process.stdin, peer.process.stdout):
            if pipe is not None:
                pipe.close()


def sha256_of(length: int, seed: int) -> str:
    return hashlib.sha256(hashlib.shake_128(seed.to_bytes(8, "little")).digest(length)).hexdigest()


def test_a_peer_reads_what_is_registered_and_nothing_else(open_peer: OpenPeer) -> None:
    owner, reader = open_peer("owner"), open_peer("reader")
    first = owner("register", length=8 * MIB, seed=1)
    reader("register", length=8 * MIB, seed=0)
    peer = reader("connect", metadata=first["metadata"])["peer"]
    read = reader("read", peer=peer, at=first["address"], length=8 * MIB, each=MIB)
    assert read["sha256"] == sha256_of(8 * MIB, 1)
    second = owner("register", length=MIB, seed=2)
    assert "could not prepare" in reader("read", peer=peer, at=second["address"], length=MIB, each=MIB)["error"]
    assert reader("connect", metadata=second["metadata"])["peer"] == peer, "the connection is the one before"
    grown = reader("read", peer=peer, at=second["address"], length=MIB, each=64 * KIB)
    assert grown["sha256"] == sha256_of(MIB, 2)
    behind = second["address"] + MIB - 4 * KIB
    assert "could not prepare" in reader("read", peer=peer, at=behind, length=8 * KIB, each=8 * KIB)["error"]
    reader("disconnect", peer=peer)
    assert "error" in reader("read", peer=peer, at=first["address"], length=MIB, each=MIB)
    for process in (reader, owner):
        closed = process("close")
        assert (closed["closed"], closed["transfers_in_flight"]) == (True, 0)
        assert process.end() == 0, "the process ends as if it had not used UCX"


@pytest.mark.slow
def test_every_read_from_a_dead_peer_ends_and_releases_its_memory(open_peer: OpenPeer) -> None:
    owner, reader = open_peer("owner"), open_peer("reader")
    owned = owner("register", length=16 * MIB, seed=3)
    reader("register", length=16 * MIB, seed=0)
    peer = reader("connect", metadata=owned["metadata"])["peer"]
    whole: dict[str, Any] = {"peer": peer, "at": owned["address"], "length": 16 * MIB}
    assert reader("read", **whole, each=16 * MIB)["sha256"] == sha256_of(16 * MIB, 3)
    os.kill(owner.process.pid, signal.SIGSTOP)  # over tcp it serves nothing from here on
    reader.ask("read", **whole, each=4 * MIB)
    reader.has_answered(0.5)
    os.kill(owner.process.pid, signal.SIGKILL)
    answered = reader.answer()
    assert "NIXL could not" in answered.get("error", "") or answered["sha256"] == sha256_of(16 * MIB, 3)
    owner.process.wait(TIMEOUT_SECONDS)
    assert "NIXL could not" in reader("read", **whole, each=16 * MIB)["error"]
    reader("disconnect", peer=peer)
    closed = reader("close")
    assert (closed["closed"], closed["transfers_in_flight"]) == (True, 0)
    again = open_peer("owner")("register", length=16 * MIB, seed=4)
    other = open_peer("reader")
    other("register", length=16 * MIB, seed=0)
    peer = other("connect", metadata=again["metadata"])["peer"]
    read = other("read", peer=peer, at=again["address"], length=16 * MIB, each=16 * MIB)
    assert read["sha256"] == sha256_of(16 * MIB, 4)


def test_it_listens_at_the_address_alone(open_peer: OpenPeer) -> None:
    owner = open_peer("owner")
    owner("register", length=MIB, seed=0)
    assert listening(owner.process.pid) == {LOOPBACK}


@pytest.mark.slow
def test_metadata_that_is_none_is_an_error_and_the_agent_goes_on(open_peer: OpenPeer) -> None:
    owner, reader = open_peer("owner"), open_peer("reader")
    owned = owner("register", length=MIB, seed=5)
    reader("register", length=MIB, seed=0)
    whole = owned["metadata"]
    for damaged in ("", "00", "ff" * 400, whole[: len(whole) // 2 & ~1], whole[:40], whole[:120] + "ff" * 400):
        assert "NIXL could not connect to a peer" in reader("connect", metadata=damaged)["error"], damaged
    peer = reader("connect", metadata=whole)["peer"]
    assert reader("read", peer=peer, at=owned["address"], length=MIB, each=MIB)["sha256"] == sha256_of(MIB, 5)


def listening(pid: int) -> set[str]:
    """The IPv4 addresses at which a process listens; none of IPv6 may be among them."""
    links = Path(f"/proc/{pid}/fd").iterdir()
    sockets = {name[8:-1] for name in (os.readlink(link) for link in links) if name.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                raw = bytes.fromhex(fields[1].split(":")[0])[::-1]
                found.add(".".join(map(str, raw)) if table == "tcp" else "IPv6")
    return found


class TestVariables:
    @pytest.fixture(autouse=True)
    def nothing_is_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable in ("UCX_NET_DEVICES", "UCX_MODULES", "UCX_LOG_FILE"):
            monkeypatch.delenv(variable, raising=False)

    @pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.9"])
    def test_without_infiniband_its_module_is_left_out(self, tmp_path: Path, address: str) -> None:
        for adapters in (tmp_path, tmp_path / "missing"):
            assert ucx_variables(address, adapters) == {**LOG, "UCX_NET_DEVICES": "lo", "UCX_MODULES": "^ib"}

    def test_an_infiniband_adapter_of_the_device_is_used_and_no_other(self, tmp_path: Path) -> None:
        for adapter, device in (("mlx5_0", "lo"), ("mlx5_1", "eth7")):
            (tmp_path / adapter / "device" / "net" / device).mkdir(parents=True)
            (tmp_path / adapter / "ports" / "1").mkdir(parents=True)
        assert ucx_variables(LOOPBACK, tmp_path) == {**LOG, "UCX_NET_DEVICES": "mlx5_0:1,lo"}

    def test_what_an_operator_has_set_stays(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_3:1")
        monkeypatch.setenv("UCX_MODULES", "^cuda")
        assert ucx_variables(LOOPBACK, tmp_path) == LOG

    def test_an_address_of_another_machine_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"203\.0\.113\.7 is not an address of this machine"):
            ucx_variables("203.0.113.7")
