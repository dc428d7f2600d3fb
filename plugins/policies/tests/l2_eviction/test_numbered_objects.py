"""Numbers of objects: one each, reused only after removal, whatever comes and goes."""

from __future__ import annotations

import gc

from hypothesis import given
from hypothesis import strategies as st

from lmcache_core.model.keys import HashChain, KeySpace, ObjectKey
from lmcache_policies.l2_eviction.contents import NumberedObjects

SPACES = [KeySpace("m", rank, 0, "", 16, HashChain.BLAKE3, bytes(16)) for rank in range(3)]


def key(space: int, chunk: int) -> ObjectKey:
    return ObjectKey(SPACES[space], bytes([chunk]) * 32)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 99), st.booleans())))
def test_it_is_a_dictionary_with_numbers(steps: list[tuple[int, int, int, bool]]) -> None:
    objects, model = NumberedObjects(), dict[ObjectKey, tuple[int, int]]()
    for space, chunk, size, is_add in steps:
        name = key(space, chunk)
        if is_add and name not in model:
            number = objects.add(name, size)
            assert number not in {taken for taken, _ in model.values()}
            model[name] = (number, size)
        elif not is_add and name in model:
            objects.remove(model.pop(name)[0])
        assert objects.find(name) == model.get(name, (-1, 0))[0]
        assert len(objects) == len(model)
        assert objects.known_bytes == sum(size for _, size in model.values())
        for known, (number, its_size) in model.items():
            assert (objects.key(number), objects.size(number)) == (known, its_size)
            assert objects.is_known(number)
        assert not objects.is_known(max((number for number, _ in model.values()), default=-1) + 100)


def test_spaces_that_hold_nothing_are_forgotten() -> None:
    objects = NumberedObjects()
    for salt in range(1000):
        space = KeySpace("m", 1, 0, str(salt), 16, HashChain.BLAKE3, bytes(16))
        objects.remove(objects.add(ObjectKey(space, bytes(32)), 1))
        assert objects.usual_size(space) is None
    assert len(objects._spaces) == 1


def test_the_usual_size_is_that_of_the_last_one() -> None:
    objects = NumberedObjects()
    objects.add(key(0, 1), 100)
    objects.add(key(0, 2), 200)
    assert (objects.usual_size(SPACES[0]), objects.usual_size(SPACES[1])) == (200, None)


def test_the_garbage_collector_walks_no_object() -> None:
    objects = NumberedObjects()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(10_000):
        objects.add(ObjectKey(SPACES[0], number.to_bytes(32, "big")), 8192)
    gc.collect()
    assert len(gc.get_objects()) - before < 100
