"""Does what lies in an L2 adapter fit to this server?  Objects of another chunk size or hash are never asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from lmcache_core.contracts.capability import Capability
from lmcache_core.contracts.clock import Clock
from lmcache_core.contracts.conditions import Condition, Severity
from lmcache_core.controllers.adapter_client import AdapterClient
from lmcache_core.controllers.conditions import counts_of
from lmcache_core.model.keys import HashChain

PAGE_KEYS: Final = 64
PAGES_MAX: Final = 16
AGAIN_SECONDS: Final = 60.0
"""Between two looks where nothing fitted."""


class FoundObjects:
    """Looks at keys that an adapter lists until one fits, up to `PAGES_MAX` pages, and again later where none does.
    `conditions` may block as long as the adapter's listing; one thread at a time."""

    def __init__(self, client: AdapterClient, chunk_tokens: int, chain: HashChain, clock: Clock) -> None:
        self.client: Final = client
        self._chunk_tokens, self._chain, self._clock = chunk_tokens, chain, clock
        self._next_look = clock.monotonic()
        self._others: Counter[str] = Counter()
        self._is_all = False
        """There is nothing else in the adapter."""

    def conditions(self) -> Iterator[Condition]:
        now = self._clock.monotonic()
        if now >= self._next_look and not self.client.is_learning:
            self._look()
            self._next_look = now + AGAIN_SECONDS if self._others else float("inf")
        if self._others:
            found = ", ".join(f"{count} with {how}" for how, count in self._others.most_common(3))
            is_own = self._is_all and Capability.SHARED not in self.client.capabilities
            yield Condition(
                "objects_do_not_fit",
                Severity.WARNING if is_own else Severity.INFO,
                f"of {self._others.total()} objects that were looked at none is ever asked for: {found}; this server has "
                f"{_words(self._chunk_tokens, self._chain)}",
                "start the server with the --chunk-size and --hash-algorithm of what is stored, or delete that",
                counts=counts_of(objects=self._others.total()),
            )

    def _look(self) -> None:
        self._others = Counter()
        if Capability.LIST not in self.client.capabilities:
            return
        others: Counter[str] = Counter()
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            page = self.client.list_keys(cursor, PAGE_KEYS)
            if page is None:
                return
            kinds = Counter((key.space.chunk_tokens, key.space.chain) for key in page.keys)
            if (self._chunk_tokens, self._chain) in kinds:
                return
            others.update({_words(*kind): count for kind, count in kinds.items()})
            cursor = page.cursor
            if cursor is None:
                break
        self._others, self._is_all = others, cursor is None


def _words(chunk_tokens: int, chain: HashChain) -> str:
    return f"chunks of {chunk_tokens} tokens and hash {chain.name.lower()}"
