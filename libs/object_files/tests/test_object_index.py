"""Index and free space agree, and what a walk saw never undoes an operation."""

from __future__ import annotations

import threading

from lmcache_object_files import ObjectIndex


def test_only_what_was_not_seen_since_is_dropped() -> None:
    index = ObjectIndex(100)
    index.put(b"a", 10)
    old = index.seen(b"a")
    index.put(b"a", 10)
    assert not index.drop_if_not_seen_since(b"a", old)
    assert not index.drop_if_not_seen_since(b"a", None)
    assert index.room.used_bytes == 10
    assert index.drop_if_not_seen_since(b"a", index.seen(b"a"))
    assert not index.drop_if_not_seen_since(b"a", None)
    assert (len(index), index.room.used_bytes) == (0, 0)


def test_what_was_dropped_is_not_adopted_and_what_was_put_is_not_changed() -> None:
    index = ObjectIndex(None)
    index.drop(b"gone")
    index.put(b"new", 7)
    assert index.adopt([(b"gone", 5), (b"new", 9), (b"old", 3)]) == [b"new"]
    assert b"gone" not in index
    assert (len(index), index.room.used_bytes) == (2, 10)
    index.put(b"gone", 5)
    assert index.room.used_bytes == 15


def test_what_is_not_known_may_be_there_until_everything_is() -> None:
    index = ObjectIndex(None)
    assert index.may_hold(b"a")
    index.drop(b"a")
    assert not index.may_hold(b"a")
    index.finish()
    assert index.complete
    assert not index.may_hold(b"b")
    assert index.adopt([(b"a", 5)]) == []
    assert len(index) == 0, "who looked before a delete tells of it after the end"


def test_of_a_file_that_is_adopted_while_it_is_written_the_writer_has_the_last_word() -> None:
    index = ObjectIndex(20)
    assert index.room.reserve(10)
    index.adopt([(b"a", 10)])
    assert not index.room.reserve(1), "a writer must not see room that is not there"
    index.commit(b"a", 10)
    assert (len(index), index.room.used_bytes, index.room.reserved_bytes) == (1, 10, 0)


def test_large_sizes_come_back_whole() -> None:
    index = ObjectIndex(None)
    for size in (0, 1, 2**31, 2**40 + 5):
        index.put(b"a", size)
        assert index.room.used_bytes == size


def test_threads_that_adopt_put_and_drop_leave_sum_and_room_equal() -> None:
    index = ObjectIndex(None)
    ids = [number.to_bytes(16, "little") for number in range(50)]

    def work(turn: int) -> None:
        for _ in range(200):
            for number, object_id in enumerate(ids):
                match (turn + number) % 3:
                    case 0:
                        index.put(object_id, number + turn)
                    case 1:
                        index.drop(object_id)
                    case _:
                        index.adopt([(object_id, number)])

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for object_id in ids:
        index.drop(object_id)
    assert (len(index), index.room.used_bytes) == (0, 0)
