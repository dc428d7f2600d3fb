"""The public package of the lm:// protocol, as it is installed beside engines: its client before our store server, our adapter
before its store, and both stores before the same bytes."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from demo.engine_process import ENGINE_PYTHON
from demo.environment import quiet_environment
from lmcache_core import HEADER_BYTES, Outcome
from lmcache_devkit import free_port
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_l2_lm.frames import Form, Request, Verb, bytes_form, key_of, pack_request
from plugins.l2_lm.tests.conftest import OpenLm
from plugins.l2_lm.tests.running import HOST, KEY, Client, Running

CLIENT: Final = Path(__file__).with_name("public_client.py")
START_SECONDS: Final = 120
QUIET_SECONDS: Final = 0.5

pytestmark = pytest.mark.skipif(
    not any(ENGINE_PYTHON.parent.parent.glob("lib/python3*/site-packages/lmcache/v1/server/__main__.py")),
    reason="the public package is not installed: make setup",
)


@pytest.fixture(scope="module")
def public_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The public store, in memory."""
    port = free_port()
    folder = tmp_path_factory.mktemp("public")
    log = folder / "log"
    with log.open("w") as file, subprocess.Popen(
        [str(ENGINE_PYTHON), "-m", "lmcache.v1.server", HOST, str(port)],
        stdout=file, stderr=file, cwd=folder, env=quiet_environment(),
    ) as server:  # fmt: skip
        try:
            end = time.monotonic() + START_SECONDS
            while True:
                try:
                    socket.create_connection((HOST, port), 1).close()
                    break
                except OSError:
                    assert server.poll() is None, log.read_text()
                    assert time.monotonic() < end, log.read_text()
                    time.sleep(0.2)
            yield port
        finally:
            server.kill()


def seen_by_public_client(folder: Path, *ports: int) -> list[Any]:
    """At the store of each port."""
    done = subprocess.run(
        [str(ENGINE_PYTHON), str(CLIENT), *map(str, ports)],
        capture_output=True, text=True, timeout=START_SECONDS, cwd=folder, env=quiet_environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    assert isinstance(seen, list)
    assert len(seen) == len(ports)
    return seen


def test_the_public_client_sees_our_store_as_it_sees_its_own(store: Running, public_port: int, tmp_path: Path) -> None:
    ours, theirs = seen_by_public_client(tmp_path, store.port, public_port)
    assert ours == theirs
    assert len(ours) == 4
    with Client(store.port) as client:
        for name, before, after, same, _, _, data in ours:
            assert (before, after, same) == ([False, False, False], True, True)
            found = client.get(name.encode())
            assert found is not None
            assert found[1].hex() == data


def said(port: int, *requests: bytes) -> bytes:
    """Everything that the store answers, until it has nothing to say for a while or hangs up."""
    with Client(port, QUIET_SECONDS) as client:
        client.socket.sendall(b"".join(requests))
        answers = b""
        while True:
            try:
                data = client.socket.recv(1 << 16)
            except (TimeoutError, ConnectionResetError):
                return answers
            if not data:
                return answers
            answers += data


def test_both_stores_answer_the_same_bytes(store: Running, public_port: int) -> None:
    value, other = bytes(range(256)) * 5, b"m@1@0@0b@uint8"
    ask = {verb: pack_request(Request(verb, KEY)) for verb in (Verb.GET, Verb.EXIST, Verb.HEALTH)}
    put = pack_request(Request(Verb.PUT, KEY, len(value), bytes_form(len(value)))) + value
    shaped = pack_request(Request(Verb.PUT, other, 12, Form(1, 3, (1, 2, 3, 1)))) + value[:12]
    tagged = b"a b@2@1@0c@bfloat16@user%x"
    conversations = (
        [ask[Verb.GET], ask[Verb.EXIST], ask[Verb.HEALTH]],
        [put, ask[Verb.EXIST], ask[Verb.GET]],
        [put, shaped, ask[Verb.GET], pack_request(Request(Verb.GET, other)), *[ask[Verb.EXIST]] * 20],
        [pack_request(Request(Verb.PUT, KEY, 3, bytes_form(3))) + b"new", ask[Verb.GET]],
        [pack_request(Request(Verb.PUT, other, 0)), pack_request(Request(Verb.GET, other)), ask[Verb.HEALTH]],
        [pack_request(Request(Verb.EXIST, KEY, location=2)), pack_request(Request(Verb.GET, KEY, location=1))],
        [pack_request(Request(Verb.PUT, tagged, 3)) + b"tag", pack_request(Request(Verb.GET, tagged))],
        [ask[Verb.EXIST], pack_request(Request(Verb.EXIST, b"no key")), ask[Verb.EXIST]],
        [b"\x09" + ask[Verb.EXIST][1:], ask[Verb.EXIST]],
    )
    for requests in conversations:
        ours = said(store.port, *requests)
        assert ours == said(public_port, *requests), requests
    assert said(store.port, ask[Verb.GET]).endswith(b"new")


def test_our_adapter_keeps_objects_in_the_public_store(public_port: int, open_at: OpenLm) -> None:
    memory = BorrowedMemory(64 << 20)
    driver = open_at(public_port)
    sizes = (1, 4_096, 100_001, 4 << 20)
    keys = [object_key(number) for number in range(len(sizes))]
    items = [
        (key, memory.sealed(key, payload_of(number, size)))
        for number, (key, size) in enumerate(zip(keys, sizes, strict=True))
    ]
    assert driver.has(*keys) == (Outcome.MISSING,) * 4
    assert driver.load((keys[0], memory.lend(HEADER_BYTES + 1))) == (Outcome.MISSING,)
    assert driver.store(*items) == (Outcome.DONE,) * 4
    assert driver.has(*keys, object_key(99)) == (*(Outcome.DONE,) * 4, Outcome.MISSING)
    loaded = [(key, memory.lend(buffer.length)) for key, buffer in items]
    assert driver.load(*loaded) == (Outcome.DONE,) * 4
    with Client(public_port) as client:
        for (key, stored), (_, back) in zip(items, loaded, strict=True):
            assert bytes(back.view) == bytes(stored.view)
            assert client.get(key_of(key)) == (bytes_form(stored.length), bytes(stored.view))
