"""Key spaces are few, numbered once, and forgotten when there are too many that hold nothing."""

from __future__ import annotations

import pytest

from lmcache_core.l1.index import Spaces
from lmcache_core.model.keys import HashChain, KeySpace


def space(salt: int) -> KeySpace:
    return KeySpace("m", 1, 0, str(salt), 16, HashChain.BLAKE3, bytes(16))


def test_a_space_has_one_number() -> None:
    spaces = Spaces()
    first = spaces.intern(space(1), 10)
    assert spaces.intern(space(1), 10) is first
    assert spaces.intern(space(2), 10).prefix != first.prefix
    assert spaces.numbered(first.number) is first


def test_empty_spaces_are_forgotten_and_their_numbers_are_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.l1.index.SPACES_KEPT", 10)
    spaces = Spaces()
    full = spaces.intern(space(0), 10)
    full.objects = 1
    prefixes = {spaces.intern(space(salt), 10).prefix for salt in range(1, 100)}
    assert len(prefixes) == 99
    assert len(spaces) <= 10
    assert spaces.intern(space(0), 10) is full


def test_a_space_that_was_forgotten_before_its_first_object_is_known_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interned, forgotten because others came, and only then filled."""
    monkeypatch.setattr("lmcache_core.l1.index.SPACES_KEPT", 2)
    spaces = Spaces()
    record = spaces.intern(space(0), 10)
    for salt in range(1, 5):
        spaces.intern(space(salt), 10)
    assert spaces.find(space(0)) is None
    spaces.adopt(record)
    assert spaces.intern(space(0), 10) is record
    assert spaces.numbered(record.number) is record


def test_spaces_that_hold_something_are_not_looked_at_for_each_newcomer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmcache_core.l1.index.SPACES_KEPT", 10)
    spaces, looks = Spaces(), list[int]()
    forget_empty = spaces._forget_empty

    def look() -> None:
        looks.append(len(spaces))
        forget_empty()

    monkeypatch.setattr(spaces, "_forget_empty", look)
    for salt in range(1000):
        spaces.intern(space(salt), 10).objects = 1
    assert looks == [10, 20, 40, 80, 160, 320, 640]
    for record in spaces.everything():
        record.objects = 0
    for salt in range(1000, 2000):
        spaces.intern(space(salt), 10)
    assert len(spaces) < 1000, "what is empty is forgotten as before"
