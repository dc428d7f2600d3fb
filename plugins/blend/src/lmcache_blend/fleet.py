"""What other servers have of a prompt: asked of the coordinator beside the server's own index.

The coordinator is not believed: its answer names the chunk before each match, and the hash of a chunk follows from that and
from the tokens, which are here.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

import msgspec

from lmcache_blend.settings import LOOKUP_PATH, TOKENS_MAX
from lmcache_blend_index import Match, link
from lmcache_client.errors import ProtocolError
from lmcache_core import KeySpace
from lmcache_fleet.families import Family, chunk_hashes
from lmcache_fleet.http_connection import HttpConnection

logger = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 0.020
"""That a lookup waits for the coordinator at most."""
FAILURES_MAX: Final = 3
"""In a row, until nothing waits for it any more."""
PAUSE_SECONDS: Final = 1.0
"""Until it is tried again, by a lookup that does not wait."""
ASKING_MAX: Final = 4
"""Lookups that ask at a time; others go without."""
_JSON: Final = {"Content-Type": "application/json"}


class FleetMatch(NamedTuple):
    """A match of a chunk that some server has."""

    match: Match
    """No entry of the index here: its `entry` is 0."""
    parent: bytes
    """Hash of the chunk before it; empty: there is none."""


class _Row(msgspec.Struct):
    chunk_hash: str
    old_st: int
    cur_st: int
    parent_hash: str = ""


class _Rows(msgspec.Struct):
    matches: list[_Row]


_decode = msgspec.json.Decoder(_Rows).decode


class Asked:
    """A question under way."""

    def __init__(self, owner: FleetMatches, future: Future[list[FleetMatch]]) -> None:
        self._owner, self._future = owner, future
        self._until = time.monotonic() + ANSWER_SECONDS

    def found(self) -> Sequence[FleetMatch]:
        """What has come in time."""
        try:
            return self._future.result(max(0.0, self._until - time.monotonic()))
        except LateError:
            self._owner.count("fleet_late")
        except CancelledError:
            pass  # the server ends
        return ()


class FleetMatches:
    """Safe from any thread."""

    def __init__(self, connections: Sequence[Sequence[HttpConnection]]) -> None:
        """`connections`: one to each coordinator, for each lookup that asks at a time."""
        self._idle = SimpleQueue[list[HttpConnection]]()
        for each in connections:
            self._idle.put(list(each))
        self._pool = ThreadPoolExecutor(len(connections), "blend-fleet")
        self._lock = threading.Lock()  # guards all below
        self._counts = Counter[str]()
        self._failures = 0
        self._again_at = 0.0

    def close(self) -> None:
        """Questions under way end by themselves, soon."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        while not self._idle.empty():
            for connection in self._idle.get():
                connection.close()

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def count(self, name: str, more: int = 1) -> None:
        with self._lock:
            self._counts[name] += more

    def ask(self, space: KeySpace, tokens: Sequence[int]) -> Asked | None:
        """None where no answer is waited for: the coordinator has failed, or too many lookups ask.  At once."""
        with self._lock:
            is_quiet, now = self._failures >= FAILURES_MAX, time.monotonic()
            if is_quiet and now < self._again_at:
                self._counts["fleet_skipped"] += 1
                return None
            self._again_at = now + PAUSE_SECONDS
        try:
            connections = self._idle.get_nowait()
        except Empty:
            self.count("fleet_skipped")
            return None
        try:
            future = self._pool.submit(self._ask, connections, space, tokens[:TOKENS_MAX])
        except RuntimeError:  # it is closed
            return None
        if is_quiet:
            self.count("fleet_skipped")
        return None if is_quiet else Asked(self, future)

    def _ask(self, connections: list[HttpConnection], space: KeySpace, tokens: Sequence[int]) -> list[FleetMatch]:
        started, why = time.monotonic(), ""
        try:
            question = {
                "tokens_b64": b64encode(array("I", tokens).tobytes()).decode(),
                "model_name": space.model_name,
                "world_size": space.kv_rank >> 24,
                "cache_salt": space.cache_salt,
                "layout": space.layout.hex(),
            }
            answer = connections[0].ask("POST", LOOKUP_PATH, msgspec.json.encode(question), _JSON)
            found = list(self._true(_decode(answer.body).matches, space, tokens))
            took = time.monotonic() - started
            why = f"it took {took:.3f} s" if took > ANSWER_SECONDS else ""
            return found
        except Exception as error:  # noqa: BLE001 - the request goes on without it
            why = str(error) or type(error).__name__
            connections.append(connections.pop(0))  # another one is asked from now on
            return []
        finally:
            self._idle.put(connections)
            self._settle(why)

    def _settle(self, why: str) -> None:
        """A question is over; `why`: it has failed."""
        with self._lock:
            before = self._failures
            now = self._failures = before + 1 if why else 0
            self._counts["fleet_failed"] += bool(why)
        if now == FAILURES_MAX:
            logger.warning("the coordinator does not say in time what others have, and is left out error=%s", why)
        elif before >= FAILURES_MAX > now:
            logger.info("the coordinator says again what others have")

    def _true(self, rows: Sequence[_Row], space: KeySpace, tokens: Sequence[int]) -> Iterator[FleetMatch]:
        """Those whose hash is that of the tokens in their place."""
        size, family = space.chunk_tokens, Family.of(space)
        for row in rows:
            try:
                parent, chunk_hash = bytes.fromhex(row.parent_hash), bytes.fromhex(row.chunk_hash)
                window = list(tokens[row.cur_st : row.cur_st + size]) if row.cur_st >= 0 else []
                place, rest = divmod(row.old_st, size)
                is_first = not parent
                is_true = not rest and place >= 0 and is_first is (place == 0) and len(parent) in (0, len(chunk_hash))
                is_true = is_true and chunk_hashes(family, window, parent) == chunk_hash
            except (ValueError, ProtocolError):
                is_true = False
            if is_true:
                yield FleetMatch(Match(row.cur_st, chunk_hash, place, link(parent), 0, False), parent)
            else:
                self.count("fleet_wrong")
