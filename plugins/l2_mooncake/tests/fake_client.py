"""A membership without Mooncake, for what a real one does only once in a blue moon."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lmcache_l2_mooncake.codes import Code
from lmcache_l2_mooncake.store_client import StoreClient, Transfer


class FakeStore:
    """What the library's object does, in a dictionary; `answers` maps a method to a code that it gives instead."""

    def __init__(self) -> None:
        self.objects: Final[dict[str, bytes]] = {}
        self.answers: Final[dict[str, int]] = {}
        self.before: Callable[[str], None] = lambda method: None
        """Called in each method first, with its name."""
        self.healthy = 0
        self.closed = threading.Event()
        self.calls: Final[list[tuple[str, int]]] = []

    def batch_put_from(self, names: list[str], addresses: list[int], sizes: list[int]) -> list[int]:
        self._begin("put", names)
        items = zip(names, addresses, sizes, strict=True)
        return [self._answer("put", self._put, name, ctypes.string_at(at, size)) for name, at, size in items]

    def batch_get_into(self, names: list[str], addresses: list[int], sizes: list[int]) -> list[int]:
        self._begin("get", names)
        return [self._answer("get", self._get, *each) for each in zip(names, addresses, sizes, strict=True)]

    def batch_is_exist(self, names: list[str]) -> list[int]:
        self._begin("exist", names)
        return [self._answer("exist", self._exists, name) for name in names]

    def batch_remove(self, names: list[str], force: bool) -> list[int]:
        assert force
        self._begin("remove", names)
        return [self._answer("remove", self._remove, name) for name in names]

    def get_size(self, name: str) -> int:
        self._begin("size", [name])
        return self._answer("size", self._size, name)

    def get_into_ranges(
        self,
        addresses: list[int],
        names: list[list[str]],
        _to: object,
        starts: list[list[list[int]]],
        sizes: list[list[list[int]]],
    ) -> list[list[list[int]]]:
        ((name,),), (address,), (((start,),),), (((size,),),) = names, addresses, starts, sizes
        self._begin("part", [name])
        return [[[self._answer("part", self._part, name, address, start, size)]]]

    def health_check(self) -> int:
        return self.healthy

    def close(self) -> int:
        self.closed.set()
        return 0

    def _begin(self, method: str, names: Sequence[str]) -> None:
        assert not self.closed.is_set(), "the library does not survive a call on a closed store"
        self.calls.append((method, len(names)))
        self.before(method)

    def _answer(self, method: str, otherwise: Callable[..., int], *arguments: Any) -> int:
        return self.answers[method] if method in self.answers else otherwise(*arguments)

    def _exists(self, name: str) -> int:
        return int(name in self.objects)

    def _size(self, name: str) -> int:
        return len(self.objects.get(name, b"")) or int(Code.OBJECT_NOT_FOUND)

    def _put(self, name: str, data: bytes) -> int:
        self.objects.setdefault(name, data)
        return 0

    def _get(self, name: str, address: int, size: int) -> int:
        data = self.objects.get(name)
        if data is None:
            return int(Code.OBJECT_NOT_FOUND)
        if len(data) > size:
            return int(Code.INVALID_PARAMS)
        ctypes.memmove(address, data, len(data))
        return len(data)

    def _part(self, name: str, address: int, start: int, size: int) -> int:
        data = self.objects.get(name)
        if data is None:
            return int(Code.OBJECT_NOT_FOUND)
        if start + size > len(data):
            return int(Code.INVALID_PARAMS)
        ctypes.memmove(address, data[start : start + size], size)
        return size

    def _remove(self, name: str) -> int:
        return 0 if self.objects.pop(name, None) is not None else int(Code.OBJECT_NOT_FOUND)


class FakeStores:
    """One after the other, each with what the store held before."""

    def __init__(self) -> None:
        self.opened: Final[list[FakeStore]] = []

    def open(self) -> StoreClient:
        store = FakeStore()
        if self.opened:
            store.objects.update(self.opened[-1].objects)
        self.opened.append(store)
        return StoreClient(store)

    @property
    def last(self) -> FakeStore:
        return self.opened[-1]


class OldStore:
    """A release that takes positions only, and knows neither batches of removals, nor force, nor its health."""

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()
        self.removed: list[str] = []

    def setup(self, *given: Any) -> int:
        if len(given) == 1 and isinstance(given[0], Mapping):
            raise TypeError("incompatible function arguments")
        self.given = given
        return 0

    def remove(self, *given: Any) -> int:
        if len(given) != 1:
            raise TypeError("incompatible function arguments")
        self.removed.append(given[0])
        return 0

    def close(self) -> int:
        return 0


def transfers(*names: str) -> list[Transfer]:
    return [Transfer(name, 4096, 10) for name in names]
