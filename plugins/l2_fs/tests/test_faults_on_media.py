"""Whatever happens to a file, it is never a hit, and what is not ours is left alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmcache_core import HEADER_BYTES, ObjectKey, Outcome, check, media_path
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_devkit.l2_driver import L2Driver
from lmcache_devkit.l2_suite import OBJECT_BYTES, counted, put
from lmcache_l2_fs.adapter import FsAdapter

DONE, MISSING, REJECTED = Outcome.DONE, Outcome.MISSING, Outcome.REJECTED
DAMAGED, FOREIGN = Outcome.DAMAGED, Outcome.FOREIGN
Open = Callable[..., FsAdapter]


def load_and_check(driver: L2Driver, memory: BorrowedMemory, key: ObjectKey) -> Outcome:
    """What core does with a load: nothing is a hit that does not pass the check, and what fails it is rejected."""
    buffer = memory.lend(OBJECT_BYTES)
    (outcome,) = driver.load((key, buffer))
    if outcome is DONE:
        outcome = check(buffer.view, key).outcome
    if outcome in (DAMAGED, FOREIGN):
        driver.adapter.reject(key, outcome)
    return outcome


def settle(driver: L2Driver) -> None:
    """Until what `reject` began has been done: a delete waits in the same line, behind it."""
    driver.delete(*(object_key(1_000_000 + number) for number in range(8)))
    driver.adapter.close(30)


def flip(path: Path, at: int, change: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ change]))


regions = st.one_of(
    st.integers(0, 120 + 32 + 64),  # fields of the header and the key
    st.integers(200, HEADER_BYTES - 17),  # padding
    st.integers(HEADER_BYTES - 16, HEADER_BYTES - 1),  # the page's digest
    st.integers(HEADER_BYTES, OBJECT_BYTES - 1),  # payload
)


@pytest.mark.parametrize("direct", [False, True])
def test_a_file_with_one_changed_byte_is_never_a_hit(
    open_here: Open, root: Path, memory: BorrowedMemory, direct: bool
) -> None:
    driver = L2Driver(open_here(use_odirect=direct))
    keys = put(driver, memory, 3)
    buffer = memory.lend(OBJECT_BYTES)

    @settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.sampled_from(keys), regions, st.integers(1, 255))
    def never_a_hit(key: ObjectKey, at: int, change: int) -> None:
        path = root / media_path(key)
        flip(path, at, change)
        (outcome,) = driver.load((key, buffer))
        assert outcome is not DONE or check(buffer.view, key).outcome in (DAMAGED, FOREIGN)
        flip(path, at, change)
        assert driver.load((key, buffer)) == (DONE,)
        assert check(buffer.view, key).outcome is DONE

    never_a_hit()


@pytest.mark.parametrize("at", [20, 100, 1000, HEADER_BYTES - 1, HEADER_BYTES, OBJECT_BYTES - 1])
def test_a_damaged_file_is_moved_aside_and_stored_anew(
    open_here: Open, root: Path, memory: BorrowedMemory, at: int
) -> None:
    adapter = open_here()
    driver = L2Driver(adapter)
    hurt, other = put(driver, memory, 2)
    flip(root / media_path(hurt), at, 0x10)
    assert load_and_check(driver, memory, hurt) is DAMAGED
    assert driver.has(hurt, other) == (MISSING, DONE)
    settle(driver)
    assert adapter.counters() == {
        "objects": 1, "bytes": OBJECT_BYTES, "recovering": 0, "foreign": 0, "damaged": 1, "rejected_full": 0,
        "other_version": 0,
    }  # fmt: skip
    assert not (root / media_path(hurt)).exists()
    (aside,) = (root / ".damaged").iterdir()
    assert aside.name.endswith(f"-{hurt.object_id.hex()}.kv")

    driver = L2Driver(open_here())
    assert driver.store((hurt, memory.sealed(hurt, payload_of(0, OBJECT_BYTES - HEADER_BYTES)))) == (DONE,)
    assert load_and_check(driver, memory, hurt) is DONE


@pytest.mark.parametrize("length", [1, 100, HEADER_BYTES, OBJECT_BYTES - 1, OBJECT_BYTES + 1, OBJECT_BYTES * 2, 0])
def test_a_file_of_another_length_is_damaged(open_here: Open, root: Path, memory: BorrowedMemory, length: int) -> None:
    adapter = open_here()
    driver = L2Driver(adapter)
    (key,) = put(driver, memory, 1)
    path = root / media_path(key)
    os.truncate(path, length)
    if length == 1:  # a single letter of our magic is not a sign of ours
        assert load_and_check(driver, memory, key) is FOREIGN
        return
    assert load_and_check(driver, memory, key) is DAMAGED
    settle(driver)
    assert counted(driver) == (0, 0)
    assert len(list((root / ".damaged").iterdir())) == 1


def test_two_files_that_were_swapped_are_foreign_and_stay_where_they_are(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    adapter = open_here()
    driver = L2Driver(adapter)
    one, other = put(driver, memory, 2)
    paths = [root / media_path(key) for key in (one, other)]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
    assert load_and_check(driver, memory, one) is FOREIGN
    assert load_and_check(driver, memory, other) is FOREIGN
    assert driver.has(one, other) == (MISSING, MISSING)
    settle(driver)
    assert adapter.counters()["foreign"] == 2
    assert counted(driver) == (0, 0)
    driver = L2Driver(open_here())
    assert driver.store((one, memory.sealed(one, b"x" * 10_000))) == (REJECTED,)
    assert [path.read_bytes() for path in paths] == contents[::-1]


@pytest.mark.parametrize("same_length", [True, False])
def test_a_foreign_file_in_our_place_is_neither_served_nor_replaced_nor_deleted(
    open_here: Open, root: Path, memory: BorrowedMemory, same_length: bool
) -> None:
    key = object_key(0)
    path = root / media_path(key)
    path.parent.mkdir(parents=True)
    letter = b"Dear diary, " * 2_000
    letter = letter[:OBJECT_BYTES] if same_length else letter
    path.write_bytes(letter)
    for act in ("store", "load", "delete"):
        adapter = open_here()
        driver = L2Driver(adapter)
        assert driver.has(key) == (DONE,), "by name it could be ours"
        match act:
            case "store":
                assert driver.store((key, memory.sealed(key, b"x" * 10_000))) == (REJECTED,)
            case "load":
                assert load_and_check(driver, memory, key) is FOREIGN
            case _:
                assert driver.delete(key) == (MISSING,)
        assert driver.has(key) == (MISSING,)
        settle(driver)
        assert adapter.counters() == {
            "objects": 0, "bytes": 0, "recovering": 0, "foreign": 1, "damaged": 0, "rejected_full": 0,
            "other_version": 0,
        }  # fmt: skip
        assert path.read_bytes() == letter


def test_a_directory_that_is_as_long_as_the_object_is_foreign(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    key = object_key(0)
    adapter = open_here()
    path = root / media_path(key)
    path.mkdir(parents=True)
    for number in range(1_000):
        if path.stat().st_size >= HEADER_BYTES:
            break
        (path / str(number)).touch()  # tmpfs counts entries, others blocks
    assert L2Driver(adapter).load((key, memory.lend(path.stat().st_size))) == (FOREIGN,)
    assert adapter.circuit.failures_in_a_row == 0


@pytest.mark.parametrize("kind", ["directory", "symlink", "fifo", "file where a directory belongs"])
def test_what_is_not_a_file_is_foreign(open_here: Open, root: Path, memory: BorrowedMemory, kind: str) -> None:
    key = object_key(0)
    adapter = open_here()
    driver = L2Driver(adapter)
    path = root / media_path(key)
    target = root.parent / "secret"
    target.write_bytes(b"s" * OBJECT_BYTES)
    if kind == "file where a directory belongs":
        path.parent.parent.parent.write_bytes(b"in the way")
    else:
        path.parent.mkdir(parents=True)
        ways: dict[str, Callable[[], None]] = {
            "directory": path.mkdir,
            "symlink": lambda: path.symlink_to(target),
            "fifo": lambda: os.mkfifo(path),
        }
        ways[kind]()
    assert driver.store((key, memory.sealed(key, b"x" * 10_000))) == (REJECTED,)
    buffer = memory.lend(OBJECT_BYTES)
    assert driver.load((key, buffer)) in ((FOREIGN,), (MISSING,))
    assert b"s" not in bytes(buffer.view), "a link was followed out of the root"
    assert target.read_bytes() == b"s" * OBJECT_BYTES
    assert driver.has(key) == (MISSING,)


def test_a_file_that_a_power_cut_left_empty_or_zeroed_makes_room(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    driver = L2Driver(open_here())
    keys = put(driver, memory, 3)
    (root / media_path(keys[0])).write_bytes(b"")
    (root / media_path(keys[1])).write_bytes(bytes(OBJECT_BYTES))
    (root / media_path(keys[2])).write_bytes(bytes(OBJECT_BYTES))
    assert load_and_check(driver, memory, keys[1]) is FOREIGN  # core sees a magic that is not ours
    settle(driver)
    driver = L2Driver(open_here())
    put(driver, memory, 3)
    for key in keys:
        assert load_and_check(driver, memory, key) is DONE


def test_a_file_that_was_removed_is_missing_and_can_be_stored_again(
    open_here: Open, root: Path, memory: BorrowedMemory
) -> None:
    driver = L2Driver(open_here())
    one, other = put(driver, memory, 2)
    for key in (one, other):
        (root / media_path(key)).unlink()
    assert load_and_check(driver, memory, one) is MISSING
    assert driver.delete(other) == (MISSING,)
    assert counted(driver) == (0, 0)
    put(driver, memory, 2)
    assert load_and_check(driver, memory, one) is DONE


def test_only_the_newest_damaged_files_are_kept(open_here: Open, root: Path, memory: BorrowedMemory) -> None:
    adapter = open_here()
    driver = L2Driver(adapter)
    (root / ".damaged").mkdir()
    (root / ".damaged" / "notes.txt").write_text("by hand")
    keys = [object_key(number) for number in range(70)]
    for key in keys:
        assert driver.store((key, memory.sealed(key, b"x" * 100))) == (DONE,)
        flip(root / media_path(key), 1000, 1)
        assert driver.delete(key) == (DONE,)  # one after the other, so that the oldest are known
    kept = {path.name[-35:-3] for path in (root / ".damaged").iterdir() if path.suffix == ".kv"}
    assert kept == {key.object_id.hex() for key in keys[-64:]}
    assert (root / ".damaged" / "notes.txt").exists()
    assert adapter.counters()["damaged"] == 70
    assert adapter.usage() == (0, None, 0)


def test_a_listing_leaves_out_what_could_not_be_served(open_here: Open, root: Path, memory: BorrowedMemory) -> None:
    adapter = open_here()
    driver = L2Driver(adapter)
    keys = put(driver, memory, 4)
    flip(root / media_path(keys[0]), 50, 1)
    (root / media_path(keys[1])).write_bytes(b"foreign")
    (root / media_path(keys[2])).unlink()
    assert driver.keys(10) == [keys[3]]
