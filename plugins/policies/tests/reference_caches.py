"""The algorithms a second time, written from their papers: with dictionaries, and for objects of one size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict

from lmcache_policies.structures.frequency_sketch import FrequencySketch

CAPACITY = 60
Row = OrderedDict[int, None]


class Cache(ABC):
    """Room for CAPACITY objects; makes room before it takes a new one."""

    def __init__(self) -> None:
        self.hits = 0
        self.victims: list[int] = []

    def request(self, key: int) -> None:
        if self.has(key):
            self.hits += 1
            self.hit(key)
            return
        if self.count() == CAPACITY:
            self.victims.append(self.evict())
        self.insert(key)

    @abstractmethod
    def has(self, key: int) -> bool: ...
    @abstractmethod
    def count(self) -> int: ...
    @abstractmethod
    def hit(self, key: int) -> None: ...
    @abstractmethod
    def insert(self, key: int) -> None: ...
    @abstractmethod
    def evict(self) -> int: ...


class Rows(Cache):
    """What the references have in common: rows of keys, from the oldest to the newest."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: tuple[Row, ...] = (OrderedDict(), OrderedDict(), OrderedDict(), OrderedDict())

    def has(self, key: int) -> bool:
        return any(key in row for row in self.rows)

    def count(self) -> int:
        return sum(map(len, self.rows))

    def insert(self, key: int) -> None:
        self.rows[0][key] = None

    def put(self, key: int, row: int) -> None:
        for other in self.rows:
            other.pop(key, None)
        self.rows[row][key] = None

    def pop_oldest(self, row: int) -> int:
        return self.rows[row].popitem(last=False)[0]


class NaiveFifo(Rows):
    def hit(self, key: int) -> None:
        pass

    def evict(self) -> int:
        return self.pop_oldest(0)


class NaiveLru(NaiveFifo):
    def hit(self, key: int) -> None:
        self.put(key, 0)


class NaiveMru(NaiveLru):
    def evict(self) -> int:
        return self.rows[0].popitem(last=True)[0]


class NaiveLfu(Cache):
    def __init__(self) -> None:
        super().__init__()
        self.used: dict[int, tuple[int, int]] = {}
        self.now = 0

    def has(self, key: int) -> bool:
        return key in self.used

    def count(self) -> int:
        return len(self.used)

    def hit(self, key: int) -> None:
        self.now += 1
        self.used[key] = min(self.used[key][0] + 1, 255), self.now

    def insert(self, key: int) -> None:
        self.now += 1
        self.used[key] = 1, self.now

    def evict(self) -> int:
        victim = min(self.used, key=self.used.__getitem__)
        del self.used[victim]
        return victim


class NaiveSlru(Rows):
    def hit(self, key: int) -> None:
        self.put(key, 1)
        while len(self.rows[1]) > 0.8 * self.count():
            self.put(next(iter(self.rows[1])), 0)

    def evict(self) -> int:
        return self.pop_oldest(0 if self.rows[0] else 1)


class NaiveSieve(Cache):
    def __init__(self) -> None:
        super().__init__()
        self.queue: list[int] = []
        self.visited: set[int] = set()
        self.hand = 0

    def has(self, key: int) -> bool:
        return key in self.queue

    def count(self) -> int:
        return len(self.queue)

    def hit(self, key: int) -> None:
        self.visited.add(key)

    def insert(self, key: int) -> None:
        self.queue.append(key)

    def evict(self) -> int:
        while True:
            self.hand %= len(self.queue)
            if self.queue[self.hand] not in self.visited:
                victim = self.queue.pop(self.hand)
                if self.hand == len(self.queue):
                    self.hand = 0
                return victim
            self.visited.remove(self.queue[self.hand])
            self.hand += 1


class NaiveS3Fifo(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.uses: dict[int, int] = {}
        self.ghosts: Row = OrderedDict()

    def hit(self, key: int) -> None:
        self.uses[key] = min(self.uses[key] + 1, 3)

    def insert(self, key: int) -> None:
        self.uses[key] = 0
        self.rows[1 if key in self.ghosts else 0][key] = None
        self.ghosts.pop(key, None)

    def evict(self) -> int:
        if len(self.rows[0]) >= 0.1 * CAPACITY or not self.rows[1]:
            while self.rows[0]:
                key = self.pop_oldest(0)
                if self.uses[key] < 2:
                    self.ghosts[key] = None
                    if len(self.ghosts) > int(0.9 * CAPACITY):
                        self.ghosts.popitem(last=False)
                    return key
                self.uses[key] = 0
                self.rows[1][key] = None
        while self.uses[next(iter(self.rows[1]))]:
            key = self.pop_oldest(1)
            self.uses[key] -= 1
            self.rows[1][key] = None
        return self.pop_oldest(1)


class NaiveArc(Cache):
    """By the cases of the paper, but for the order: room is made before it is known what comes."""

    def __init__(self) -> None:
        super().__init__()
        self.t1, self.t2, self.b1, self.b2 = (Row() for _ in range(4))
        self.p = 0.0

    def has(self, key: int) -> bool:
        return key in self.t1 or key in self.t2

    def count(self) -> int:
        return len(self.t1) + len(self.t2)

    def hit(self, key: int) -> None:
        (self.t1 if key in self.t1 else self.t2).pop(key)
        self.t2[key] = None

    def insert(self, key: int) -> None:
        if key in self.b1:
            self.p = min(CAPACITY, self.p + max(len(self.b2) / len(self.b1), 1))
            del self.b1[key]
            self.t2[key] = None
        elif key in self.b2:
            self.p = max(0, self.p - max(len(self.b1) / len(self.b2), 1))
            del self.b2[key]
            self.t2[key] = None
        else:
            if len(self.t1) + len(self.b1) == CAPACITY:
                self.b1.popitem(last=False)
            if self.count() + len(self.b1) + len(self.b2) == 2 * CAPACITY:
                self.b2.popitem(last=False)
            self.t1[key] = None

    def evict(self) -> int:
        return self.evict_from(*((self.t1, self.b1) if len(self.t1) > self.p else (self.t2, self.b2)))

    def evict_from(self, here: Row, ghosts: Row) -> int:
        victim, _ = here.popitem(last=False)
        ghosts[victim] = None
        return victim


class PaperArc(NaiveArc):
    """In the order of the paper: the border moves first, and an object that comes back to the second list breaks a tie."""

    def request(self, key: int) -> None:
        if self.has(key):
            self.hits += 1
            self.hit(key)
            return
        full = self.count() == CAPACITY
        comes_back, breaks_tie = key in self.b1 or key in self.b2, key in self.b2
        if comes_back:
            self.insert(key)
        if full:
            take_first = len(self.t1) > self.p or (breaks_tie and 0 < len(self.t1) == self.p)
            self.victims.append(self.evict_from(*((self.t1, self.b1) if take_first else (self.t2, self.b2))))
        if not comes_back:
            self.insert(key)


class NaiveWTinyLfu(Rows):
    """Rows: window, arrivals, probation, protected."""

    def __init__(self) -> None:
        super().__init__()
        self.sketch = FrequencySketch()

    def used(self, key: int) -> int:
        return self.sketch.estimate(key.to_bytes(36, "big"))

    def insert(self, key: int) -> None:
        self.sketch.add(key.to_bytes(36, "big"))
        self.rows[0][key] = None
        while len(self.rows[0]) > max(1, 0.01 * self.count()):
            self.put(next(iter(self.rows[0])), 1)

    def hit(self, key: int) -> None:
        self.sketch.add(key.to_bytes(36, "big"))
        self.put(key, 0 if key in self.rows[0] else 3)
        while len(self.rows[3]) > 0.8 * (self.count() - len(self.rows[0])):
            self.put(next(iter(self.rows[3])), 2)

    def evict(self) -> int:
        while not self.rows[2] and not self.rows[3] and len(self.rows[1]) > 1:
            self.rows[2][self.pop_oldest(1)] = None
        resident = 2 if self.rows[2] else 3
        if not self.rows[1]:
            return self.pop_oldest(resident)
        arrival, there = next(iter(self.rows[1])), next(iter(self.rows[resident]))
        if self.used(arrival) > self.used(there):
            self.put(arrival, 2)
            return self.rows[resident].popitem(last=False)[0] if resident == 3 else self._pop(there)
        return self.pop_oldest(1)

    def _pop(self, key: int) -> int:
        del self.rows[2][key]
        return key
