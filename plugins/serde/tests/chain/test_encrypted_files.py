"""`aesgcm` and `zstd` from the configuration to files on a disk, and back after a restart."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from lmcache_core.app.adapter_specs import adapter_spec
from lmcache_core.app.open_l2 import open_spec
from lmcache_core.app.plugins.loaded_plugins import LoadedPlugins
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.serdes import KnownLayouts
from lmcache_core.contracts.capability import Capability
from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.object_header import HEADER_BYTES, ObjectHeader, inspect, seal_encoded
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import SPACE, BorrowedMemory, adapter_context, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver

for _module, _name in (("lmcache_serde", "lmcache-serde"), ("lmcache_l2_fs", "lmcache-l2-fs")):
    pytest.importorskip(_module, reason=f"{_name} is not installed")
from lmcache_l2_fs.adapter import FsAdapter  # noqa: E402

DONE, DAMAGED, FOREIGN = (Outcome.DONE,), (Outcome.DAMAGED,), (Outcome.FOREIGN,)
KEY = object_key(1)
PAYLOAD = payload_of(1, 20_000)
NONCE_BYTES: Final = 24
SECRETS = [payload_of(number, 32).hex() for number in (7, 8)]
OLD, NEW = ({"type": "aesgcm", "keys": [{"value": secret}]} for secret in SECRETS)
BOTH = {"type": "aesgcm", "keys": [{"value": secret} for secret in reversed(SECRETS)]}


@pytest.fixture(scope="module")
def plugins() -> LoadedPlugins:
    return load_plugins(["fs", "serde"])


Start = Callable[..., L2Driver]


@pytest.fixture
def start(plugins: LoadedPlugins, tmp_path: Path) -> Iterator[Start]:
    """An adapter over a folder, as a server opens it.  What was started on it before is closed."""
    running: dict[str, L2Driver] = {}

    def start(serde: Any, folder: str = "kv") -> L2Driver:
        if before := running.pop(folder, None):
            before.close(5.0)
        given = {"type": "fs", "base_path": str(tmp_path / folder), "serde": serde}
        spec = adapter_spec(given, plugins, "--l2-adapter[0]", ())
        driver = L2Driver(open_spec(spec, plugins, adapter_context(BorrowedMemory(1 << 20)), KnownLayouts()))
        running[folder] = driver
        driver.usage()  # it knows what is there
        return driver

    yield start
    for driver in running.values():
        driver.close(5.0)


@pytest.fixture
def memory() -> BorrowedMemory:
    return BorrowedMemory()


def of_tenant(salt: str, number: int = 1) -> ObjectKey:
    return ObjectKey(replace(SPACE, cache_salt=salt), object_key(number).chunk_hash)


def file_of(folder: Path, key: ObjectKey) -> Path:
    (path,) = folder.rglob(f"{key.object_id.hex()}.kv")
    return path


def loaded(driver: L2Driver, memory: BorrowedMemory, key: ObjectKey = KEY) -> tuple[tuple[Outcome, ...], bytes]:
    buffer = memory.lend(HEADER_BYTES + len(PAYLOAD))
    return driver.verified_load((key, buffer)), bytes(buffer.view[HEADER_BYTES:])


def test_equal_content_of_two_tenants_cannot_be_seen_in_what_is_stored(
    start: Start, memory: BorrowedMemory, tmp_path: Path
) -> None:
    driver = start(OLD)
    stored = []
    for salt in ("a", "b"):
        key = of_tenant(salt)
        assert driver.store((key, memory.sealed(key, PAYLOAD))) == DONE
        stored.append(file_of(tmp_path, key).read_bytes())
        assert loaded(driver, memory, key) == (DONE, PAYLOAD)
    headers = [inspect(each[:HEADER_BYTES]) for each in stored]
    assert all(isinstance(header, ObjectHeader) and not any(header.payload_digest) for header in headers)
    one, other = (each[HEADER_BYTES:] for each in stored)
    assert len(one) == len(other)
    same = sum(a == b for a, b in zip(one, other, strict=True))
    assert same < len(one) / 100, "of random bytes, one in 256 is the same"
    assert all(PAYLOAD[at : at + 16] not in each for each in stored for at in range(0, len(PAYLOAD), 16))


@pytest.mark.parametrize("theirs", [of_tenant("theirs"), of_tenant("mine", 2)], ids=["tenant", "chunk"])
@pytest.mark.parametrize(("with_a_new_header", "expected"), [(False, FOREIGN), (True, DAMAGED)])
def test_an_object_that_was_moved_to_another_name_is_refused(
    start: Start,
    memory: BorrowedMemory,
    tmp_path: Path,
    theirs: ObjectKey,
    with_a_new_header: bool,
    expected: tuple[Outcome, ...],
) -> None:
    """Tenants have keys of their own; of one tenant, what the object is has been authenticated with it."""
    driver = start(OLD)
    mine = of_tenant("mine")
    for key in (mine, theirs):
        assert driver.store((key, memory.sealed(key, PAYLOAD))) == DONE
    moved = bytearray(file_of(tmp_path, theirs).read_bytes())
    header = inspect(bytes(moved[:HEADER_BYTES]))
    assert isinstance(header, ObjectHeader)
    if with_a_new_header:
        seal_encoded(
            memoryview(moved), mine, header.created_ns,
            payload_bytes=header.payload_bytes, payload_digest=header.payload_digest, serdes=header.serdes,
        )  # fmt: skip
    file_of(tmp_path, mine).write_bytes(moved)
    outcome, seen = loaded(driver, memory, mine)
    assert outcome == expected
    assert PAYLOAD[:64] not in seen
    assert loaded(driver, memory, theirs) == (DONE, PAYLOAD)


def test_no_two_stores_share_a_nonce_or_a_byte_more_than_by_chance(
    start: Start, memory: BorrowedMemory, tmp_path: Path
) -> None:
    """The same content under the same key: again, after a restart, and from two servers with one master key."""
    bodies = []
    for folder in ("kv", "kv", "other"):
        driver = start(OLD, folder)
        for _ in range(3):
            driver.delete(KEY)
            assert driver.store((KEY, memory.sealed(KEY, PAYLOAD))) == DONE
            bodies.append(file_of(tmp_path / folder, KEY).read_bytes()[HEADER_BYTES:])
    assert len({body[:NONCE_BYTES] for body in bodies}) == 9
    first, *others = bodies
    for other in others:
        assert sum(a == b for a, b in zip(first, other, strict=True)) < len(first) / 100


def test_keys_are_rotated_and_what_is_unreadable_names_its_key(
    start: Start, memory: BorrowedMemory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = start(OLD)
    assert driver.store((KEY, memory.sealed(KEY, PAYLOAD))) == DONE
    header = inspect(file_of(tmp_path, KEY).read_bytes()[:HEADER_BYTES])
    assert isinstance(header, ObjectHeader)
    key_number = header.serdes[0].parameters[1:].hex()
    assert loaded(start(BOTH), memory) == (DONE, PAYLOAD)
    with caplog.at_level(logging.ERROR):
        outcome, seen = loaded(start(NEW), memory)
    assert outcome == DAMAGED
    assert PAYLOAD[:64] not in seen
    assert f"written with key {key_number}" in caplog.text
    assert not any(secret in caplog.text for secret in SECRETS)


def test_objects_of_another_key_in_a_shared_backend_are_another_servers(
    start: Start, memory: BorrowedMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are loaded once, left where they are, and not offered again.  (This medium has one owner: only shared ones refuse
    to store in their place.)"""
    assert start(OLD).store((KEY, memory.sealed(KEY, PAYLOAD))) == DONE
    there = file_of(tmp_path, KEY).read_bytes()
    monkeypatch.setattr(FsAdapter, "capabilities", FsAdapter.capabilities | Capability.SHARED)
    driver = start(NEW)
    assert driver.has(KEY) == DONE
    assert loaded(driver, memory)[0] == FOREIGN
    driver.adapter.reject(KEY, FOREIGN[0])
    for _ in range(3):
        assert driver.has(KEY) == (Outcome.MISSING,)
    assert file_of(tmp_path, KEY).read_bytes() == there
    assert loaded(start(BOTH), memory) == (DONE, PAYLOAD)


@pytest.mark.parametrize(
    ("before", "after"),
    [("zstd", ["zstd", NEW]), (["zstd", OLD], [OLD, "zstd"]), (None, OLD)],
    ids=["one more", "turned", "plain"],
)
def test_another_chain_after_a_restart_serves_nothing_and_touches_nothing(
    start: Start, memory: BorrowedMemory, tmp_path: Path, caplog: pytest.LogCaptureFixture, before: Any, after: Any
) -> None:
    assert start(before).store((KEY, memory.sealed(KEY, PAYLOAD))) == DONE
    path = file_of(tmp_path, KEY)
    stored = path.read_bytes()
    driver = start(after)
    outcome, seen = loaded(driver, memory)
    assert outcome == FOREIGN
    assert seen != PAYLOAD
    assert "objects of another chain are left alone" in caplog.text
    assert driver.has(KEY) == (Outcome.MISSING,)
    assert path.read_bytes() == stored
    assert loaded(start(before), memory) == (DONE, PAYLOAD)


@pytest.mark.parametrize("after", ["zstd", None], ids=["zstd", "plain"])
def test_what_is_longer_than_anything_of_the_new_chain_is_not_served_either(
    start: Start, memory: BorrowedMemory, after: Any
) -> None:
    assert start(["zstd", OLD]).store((KEY, memory.sealed(KEY, PAYLOAD))) == DONE
    outcome, seen = loaded(start(after), memory)
    assert outcome == DAMAGED, "the backend cannot tell it from one that has grown"
    assert seen != PAYLOAD


@pytest.mark.parametrize("serde", ["zstd", {"type": "zstd", "level": 3}])
def test_what_becomes_another_length_is_stored_again_and_is_not_called_damaged(
    start: Start, memory: BorrowedMemory, tmp_path: Path, serde: Any
) -> None:
    assert start("zstd").store((KEY, memory.sealed(KEY, bytes(20_000)))) == DONE
    driver = start(serde)
    assert driver.store((KEY, memory.sealed(KEY, PAYLOAD))) == DONE
    assert loaded(driver, memory) == (DONE, PAYLOAD)
    assert [path for path in tmp_path.rglob("*") if ".damaged" in path.parts and path.is_file()] == []
    usage = driver.usage()
    assert usage is not None
    assert usage.objects == 1
