"""`lmcache fleet`, and `lmcache quota` of a fleet, against a real coordinator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmcache_core import HashChain, KeySpace, pack_kv_rank
from lmcache_core.app.cli import main
from lmcache_fleet.messages import JournalPage, Kind, Run, encode
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess

Captured = pytest.CaptureFixture[str]
HASHES = [f"{number:02x}" * 32 for number in range(3)]


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CoordinatorProcess]:
    flags = ("--eviction-check-interval", "0", "--instance-timeout", "600")
    with CoordinatorProcess(tmp_path_factory.mktemp("fleet"), *flags) as running:
        for number in (1, 2):
            said = {"instance_id": f"server-{number}", "ip": f"10.0.0.{number}", "http_port": 8080}
            assert running.ask("POST", "/instances", said).status == 200
        events = [
            {
                "type": "store",
                "key": {"chunk_hash_hex": each, "model_name": "m", "kv_rank": 0, "cache_salt": "\x1b[2Jgone"},
                "bytes": 1 << 20,
            }
            for each in HASHES
        ]
        batch = {"instance_id": "server-1", "seq": 1, "events": events}
        assert running.ask("POST", "/l2/events", batch).status == 200
        yield running


def test_instances_and_removing_one(coordinator: CoordinatorProcess, capsys: Captured) -> None:
    assert main(["fleet", "instances", "--url", coordinator.url]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["INSTANCE", "ADDRESS", "WORKERS", "KEYS", "SILENT", "FOR", "STATE"]
    assert [row.split()[:4] for row in rows] == [[f"server-{n}", f"10.0.0.{n}:8080", "1", "0"] for n in (1, 2)]
    assert main(["fleet", "remove", "server-2", "--url", coordinator.url]) == 0
    assert capsys.readouterr().out == "'server-2' is removed\n"
    assert main(["fleet", "remove", "server-2", "--url", coordinator.url]) == 1
    assert "instance 'server-2' is not registered" in capsys.readouterr().err
    assert main(["fleet", "instances", "--json", "--url", coordinator.url]) == 0
    assert [each["instance_id"] for each in json.loads(capsys.readouterr().out)["instances"]] == ["server-1"]


def test_peers_that_cannot_be_asked(tmp_path: Path, capsys: Captured) -> None:
    """Of real servers: tests/peers/test_counts.py."""
    with CoordinatorProcess(tmp_path) as coordinator:
        asked = ["fleet", "peers", "--url", coordinator.url]
        assert coordinator.ask("POST", "/instances", {"instance_id": "alone", "ip": "127.0.0.1"}).status == 200
        assert main(asked) == 0
        assert capsys.readouterr().out.startswith("no server of this fleet reads from others")
        for name, port in (("closed", 1), ("mute", 0)):
            said = {
                "instance_id": name,
                "ip": "127.0.0.1",
                "http_port": port,
                "p2p_advertised_url": "tcp://127.0.0.1:2#a",
            }
            assert coordinator.ask("POST", "/instances", said).status == 200
        assert main(asked) == 1
        closed, mute = capsys.readouterr().out.splitlines()
        assert closed.startswith("closed: http://127.0.0.1:1 does not answer: ")
        assert mute == "mute: it has no admin API"


def test_usage_and_quotas_of_the_fleet(coordinator: CoordinatorProcess, capsys: Captured) -> None:
    url = ("--url", coordinator.url)
    assert main(["quota", "set", "a%1", "--limit-gb", "2.5", *url]) == 0
    assert capsys.readouterr().out == "'a%1' may use 2.5 GiB of shared L2\n"
    for command in (["quota", "list"], ["fleet", "usage"]):
        assert main([*command, *url]) == 0
        assert capsys.readouterr().out.splitlines() == [
            "SALT         LIMIT GIB  USED GIB  USED BYTES",
            "\\x1b[2Jgone  0          0.00293   3145728",
            "a%1          2.5        0         0",
        ]
    assert main(["quota", "get", "a%1", *url]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["a%1", "2.5", "0", "0"]
    assert main(["quota", "delete", "a%1", *url]) == 0
    assert capsys.readouterr().out == "'a%1' has no quota of its own any more\n"
    assert main(["quota", "delete", "a%1", *url]) == 1
    assert "cache salt 'a%1' has no quota; GET /l2/status lists those that do" in capsys.readouterr().err


def test_keys_and_status(coordinator: CoordinatorProcess, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMCACHE_COORDINATOR_URL", f"{coordinator.url},http://127.0.0.1:1")
    assert main(["fleet", "keys"]) == 0
    assert "0 placements; the directory takes" in capsys.readouterr().out
    assert main(["fleet", "status"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("healthy\n")
    assert "used of shared L2" in shown
    assert "3 MiB" in shown


def test_lookup_by_hashes(coordinator: CoordinatorProcess, tmp_path: Path, capsys: Captured) -> None:
    space = KeySpace("m", pack_kv_rank(1, 0), 0, "a", 256, HashChain.BLAKE3, bytes(16))
    said = {"instance_id": "server-7", "incarnation": "1"}
    assert coordinator.ask("POST", "/instances", said).status == 200
    known = b"".join(bytes.fromhex(each) for each in HASHES[:2])
    page = JournalPage(
        instance="server-7",
        incarnation="1",
        source="l1",
        spaces=(space.tail,),
        runs=(Run(Kind.STORE, 0, 100, known),),
        first=0,
    )
    packed = {"Content-Type": "application/msgpack"}
    assert coordinator.ask("POST", "/fleet/journal", encode(page), packed).status == 200
    hashes = tmp_path / "hashes"
    hashes.write_text(" ".join(HASHES))
    asked = ["fleet", "lookup", "--model", "m", "--hashes", str(hashes), "--url", coordinator.url]
    assert main([*asked, "--salt", "a"]) == 0
    assert capsys.readouterr().out.split() == [
        *("CHUNK", "SHARD", "INSTANCE", "WHERE"),
        *(HASHES[0], "0", "server-7", "l1"),
        *(HASHES[1], "0", "server-7", "l1"),
        *["of", "3", "chunks", "that", "were", "asked", "for"],
    ]
    assert main(asked) == 0
    assert capsys.readouterr().out == "no server has any of 3 chunks\n"
    assert coordinator.ask("DELETE", "/instances/server-7").status == 204


def test_a_degraded_fleet_is_exit_code_1(coordinator: CoordinatorProcess, capsys: Captured) -> None:
    for number, tokens in (("3", 16), ("4", 256)):
        said = {"instance_id": f"server-{number}", "metadata": {"chunk_tokens": tokens}}
        assert coordinator.ask("POST", "/instances", said).status == 200
    for _ in range(100):
        if (code := main(["fleet", "status", "--url", coordinator.url])) == 1:
            break
    shown = capsys.readouterr().out
    assert code == 1
    assert "DEGRADED: " in shown
    assert "16 tokens: server-3; 256 tokens: server-4" in shown
    assert "Give all of them the same --chunk-size" in shown


def test_a_server_is_asked_with_the_coordinators_token_alone(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-the-test\n")
    tokens.chmod(0o600)
    with CoordinatorProcess(tmp_path, "--token-file", str(tokens)) as coordinator:
        monkeypatch.setenv("LMCACHE_HTTP_TOKEN", "a-token-of-the-test")  # a server's: not sent to a coordinator
        assert main(["fleet", "keys", "--url", coordinator.url]) == 1
        assert "401" in capsys.readouterr().err
        assert main(["fleet", "keys", "--url", coordinator.url, "--token-file", str(tokens)]) == 0
