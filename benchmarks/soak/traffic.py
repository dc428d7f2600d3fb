"""Engines that behave as engines do, badly at times: conversations, aborts, silent deaths, new registrations."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Final

from lmcache_client.errors import LMCacheError
from lmcache_devkit import FakeEngine

CONVERSATIONS: Final = 6
"""Open ones per engine."""
TURNS_CHUNKS: Final = 3
LONGEST_CHUNKS: Final = 40
SHARED_PROMPTS: Final = 8
SHARED_CHUNKS: Final = 4
VOCABULARY: Final = 50_000
SALTS: Final = ("", "tenant-a", "", "tenant-b", "", "tenant-b")

# What goes wrong, each by its share of turns.
ABANDONS_LOOKUP: Final = 0.05
FREES_LOOKUP: Final = 0.10
FORGETS_END: Final = 0.05
DIES_STORING: Final = 0.01
DIES_READING: Final = 0.005
REGISTERS_AGAIN: Final = 0.01
CLEARS: Final = 0.00005


class Tally:
    """What all engines did.  Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self.complaints: list[str] = []

    def count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self._counts[what] += number

    def complain(self, what: str) -> None:
        """Something that must not happen."""
        with self._lock:
            self.complaints.append(what)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


class SoakEngine:
    """One engine on a thread of its own, until `stop` is set."""

    def __init__(self, number: int, endpoint: str, ping_seconds: float, tally: Tally) -> None:
        """Two of three map shared memory; the third gets its chunks through the engine port, and shares model and salt
        with another one."""
        self._number = number
        self._endpoint = endpoint
        self._model = f"model-{number // 3 % 2}"
        self._salt = SALTS[number % len(SALTS)]
        self._maps_memory = number % 3 != 2
        self._ping_seconds = ping_seconds
        self._tally = tally
        self._rng = random.Random(number)
        self._conversations: list[list[int]] = []
        self._pinged = 0.0
        self._requests = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"engine-{number}", daemon=True)
        self._engine = self._born()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self, timeout_seconds: float) -> None:
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            self._tally.complain(f"engine {self._number} hangs")

    def _born(self) -> FakeEngine:
        engine = FakeEngine(
            self._endpoint,
            model=self._model,
            layers=1,
            hidden=32,
            salt=self._salt,
            maps_memory=self._maps_memory,
            timeout_seconds=30.0,
        )
        engine.register()
        engine.worker.ping(engine.instance_id)  # without one the server waits much longer before it takes it for dead
        self._pinged = time.monotonic()
        self._tally.count("registrations")
        return engine

    def _die(self) -> None:
        """As a killed engine: connections drop, nothing is said, another one comes up."""
        self._engine.close()
        self._tally.count("deaths")
        self._engine = self._born()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._ping()
                self._turn()
        except (LMCacheError, AssertionError) as error:
            self._tally.complain(f"engine {self._number}: {type(error).__name__}: {error}")
        finally:
            self._engine.close()
            if not self._stop.is_set():
                self._tally.complain(f"engine {self._number} ended early")

    def _ping(self) -> None:
        if time.monotonic() - self._pinged < self._ping_seconds:
            return
        if not self._engine.worker.ping(self._engine.instance_id):
            self._engine.register()
            self._tally.count("registrations lost")
        self._pinged = time.monotonic()

    def _turn(self) -> None:
        rng, engine, tally = self._rng, self._engine, self._tally
        tokens = self._grown()
        self._requests += 1
        request = f"{self._number}-{self._requests}"
        tally.count("turns")
        hits = engine.lookup(tokens, request)
        end = engine.whole(tokens)
        hit_tokens = hits * engine.chunk_tokens
        if hit_tokens > end:
            tally.complain(f"{hits} chunks hit of a prompt of {end} tokens")
        chance = rng.random()
        if chance < ABANDONS_LOOKUP:
            tally.count("lookups abandoned")
            return
        if chance < ABANDONS_LOOKUP + FREES_LOOKUP:
            engine.scheduler.free_lookup_locks(engine.key(tokens, request, 0, hit_tokens, of_worker=False))
        elif hits and not self._read(tokens, request, hit_tokens):
            return
        if rng.random() < DIES_STORING and end > hit_tokens:
            engine.worker.prepare_store(engine.key(tokens, request, hit_tokens, end), engine.instance_id)
            self._die()
            return
        if end > hit_tokens:
            tally.count("chunks stored", (end - hit_tokens) // engine.chunk_tokens)
            engine.store(tokens, request, hit_tokens, end)
        if rng.random() >= FORGETS_END:
            engine.end(request)
        if rng.random() < REGISTERS_AGAIN:
            engine.register()
        if rng.random() < CLEARS:
            engine.scheduler.clear()
            tally.count("clears")

    def _read(self, tokens: list[int], request: str, end: int) -> bool:
        """Every byte is compared with what the tokens say it must be.  False when the engine died over it."""
        engine, tally = self._engine, self._tally
        if self._rng.random() < DIES_READING:
            engine.worker.prepare_retrieve(engine.key(tokens, request, 0, end), engine.instance_id)
            self._die()
            return False
        if self._maps_memory:
            chunks = engine.retrieve(tokens, request, 0, end)
            message = None if chunks is None else b"".join(chunks)
        else:
            message = self._inband(tokens, request, end)
        if message is None:
            tally.count("hits lost")  # the lookup's lease had expired
            return True
        at = 0
        for chunk in range(end // engine.chunk_tokens):
            content = engine.content(tokens, chunk)
            at = message.find(content, at)  # in-band, the chunks are in a frame
            if at < 0:
                tally.complain(f"wrong bytes in chunk {chunk} of request {request}")
                return True
            at += len(content)
        tally.count("chunks read", end // engine.chunk_tokens)
        return True

    def _inband(self, tokens: list[int], request: str, end: int) -> bytes | None:
        """The frame that the chunks come in; None for a miss."""
        engine = self._engine
        key = engine.key(tokens, request, 0, end)
        reply = engine.worker.prepare_retrieve(key, engine.instance_id)
        engine.worker.commit_retrieve(key, engine.instance_id)
        return reply.data if reply.success else None

    def _grown(self) -> list[int]:
        """A conversation of ours with something new at its end; some tokens are beyond the last whole chunk."""
        rng, size = self._rng, self._engine.chunk_tokens
        if len(self._conversations) < CONVERSATIONS:
            shared = random.Random(rng.randrange(SHARED_PROMPTS))
            self._conversations.append([shared.randrange(VOCABULARY) for _ in range(SHARED_CHUNKS * size)])
        place = rng.randrange(len(self._conversations))
        tokens = self._conversations[place]
        tokens = tokens + [rng.randrange(VOCABULARY) for _ in range(rng.randrange(size // 2, TURNS_CHUNKS * size))]
        if len(tokens) >= LONGEST_CHUNKS * size:
            del self._conversations[place]
        else:
            self._conversations[place] = tokens
        return tokens
