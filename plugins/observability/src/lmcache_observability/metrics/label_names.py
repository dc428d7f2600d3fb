"""How names that clients choose (models, salts) appear as label values: few, short and printable."""

from __future__ import annotations

import threading
from hashlib import blake2b
from typing import Final

from lmcache_observability.shown_salt import SaltStyle, shown_salt

OTHER: Final = "_other"
"""All values of a label beyond the limit, taken together."""
CACHE_SALT: Final = "cache_salt"
LENGTH_MAX: Final = 128
_DIGEST_BYTES: Final = 8


class LabelNames:
    """The first `limit` values of each label keep a name of their own as long as the server runs, and all others are
    `_other`: a value never moves from one to the other, so that sums of counters stay exact and never fall.  Any thread.
    """

    def __init__(self, limit: int, salts: SaltStyle) -> None:
        self._limit = limit
        self._salts = salts
        self._shown: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._lock = threading.Lock()  # guards _counts, and who is added to _shown

    def show(self, label: str, value: str) -> str:
        shown = self._shown.get((label, value))
        return self._add(label, value) if shown is None else shown

    def _add(self, label: str, value: str) -> str:
        if value == OTHER:
            return OTHER
        with self._lock:
            count = self._counts.get(label, 0)
            if (label, value) in self._shown or count >= self._limit:
                return self._shown.get((label, value), OTHER)
            shown = printable(shown_salt(value, self._salts) if label == CACHE_SALT else value)
            self._counts[label] = count + 1
            self._shown[label, value] = shown
            return shown


def printable(value: str) -> str:
    """`value` without what could break a line, a terminal or an encoding; one that had to be changed or cut ends in a digest
    of it all, so that different values stay different."""
    if len(value) <= LENGTH_MAX and value.isprintable():
        return value
    plain = "".join(each if each.isprintable() else "?" for each in value)
    digest = blake2b(value.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{plain[: LENGTH_MAX - len(digest) - 1]}~{digest}"
