"""The three designs of the seed's table, as it describes them, in the structures of Python that it names.  For this
benchmark only: each knows one place per key, where it names one."""

from __future__ import annotations

from benchmarks.fleet.keys import integers

WORKER = 0
LOCATION = "LocalCPUBackend"
Place = tuple[str, int, str]
"""Instance, worker and location."""


def name(instance: int) -> str:
    return f"instance-{instance:04d}"


class Flat:
    """S0: one dict from a chunk to its place.  A worker that leaves is taken out by making the dict anew."""

    def __init__(self) -> None:
        self._places: dict[int, Place] = {}

    def prepared(self, instance: int, hashes: bytes) -> list[int]:
        return integers(hashes)

    def report(self, instance: int, keys: list[int]) -> None:
        instance_name, places = name(instance), self._places
        for key in keys:
            places[key] = (instance_name, WORKER, LOCATION)

    def found(self, keys: list[int]) -> int:
        return sum(self._places.get(key) is not None for key in keys)

    def deregister(self, instance: int) -> None:
        gone = name(instance)
        self._places = {key: place for key, place in self._places.items() if place[0] != gone}


class Tree:
    """S1: instance, worker, location, and the set of chunks that is there.  A look-up goes through the instances."""

    def __init__(self) -> None:
        self._instances: dict[str, dict[int, dict[str, set[int]]]] = {}

    def prepared(self, instance: int, hashes: bytes) -> list[int]:
        return integers(hashes)

    def report(self, instance: int, keys: list[int]) -> None:
        workers = self._instances.setdefault(name(instance), {})
        chunks = workers.setdefault(WORKER, {}).setdefault(LOCATION, set())
        for key in keys:
            chunks.add(key)

    def place(self, key: int) -> Place | None:
        for instance, workers in self._instances.items():
            for worker, locations in workers.items():
                for location, chunks in locations.items():
                    if key in chunks:
                        return instance, worker, location
        return None

    def found(self, keys: list[int]) -> int:
        return sum(self.place(key) is not None for key in keys)

    def deregister(self, instance: int) -> None:
        del self._instances[name(instance)]


class TreeWithIndex(Tree):
    """S2: S1, and a dict from a chunk to its place beside it."""

    def __init__(self) -> None:
        super().__init__()
        self._index: dict[int, Place] = {}

    def report(self, instance: int, keys: list[int]) -> None:
        super().report(instance, keys)
        instance_name, index = name(instance), self._index
        for key in keys:
            index[key] = (instance_name, WORKER, LOCATION)

    def place(self, key: int) -> Place | None:
        return self._index.get(key)

    def deregister(self, instance: int) -> None:
        gone = name(instance)
        for chunks in self._instances[gone][WORKER].values():
            for key in chunks:
                if self._index.get(key, ("",))[0] == gone:
                    del self._index[key]
        super().deregister(instance)
