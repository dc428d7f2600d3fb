"""One membership in a Mooncake Store: the library's object, set up, with L1's memory registered."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from lmcache_core import ResourceError
from lmcache_l2_mooncake.codes import Code, name_of

_ENVIRONMENT: Final = {
    "MC_TELEMETRY": "0",
    "MC_LOG_LEVEL": "ERROR",
    "MC_STORE_CLIENT_SETUP_RETRIES": "3",
}
"""What the library reads when it is loaded or set up; what the user has set stays.  Left alone it writes a dozen lines for
each set-up to the error output, and tries twenty times, for a minute and a half, where no master answers."""

_POSITIONAL: Final = (
    "local_hostname",
    "metadata_server",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "rdma_devices",
    "master_server_addr",
)
_SIZES: Final = ("global_segment_size", "local_buffer_size")


class Transfer(NamedTuple):
    """One object and where its bytes are, or are to go."""

    name: str
    address: int
    length: int


class Span(NamedTuple):
    """Memory that the library may read and write."""

    address: int
    length: int


def store_class() -> Any:
    """The library's class.  Changes the environment of this process, for what is not set there.  Raises ResourceError."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        from mooncake.store import MooncakeDistributedStore  # heavy, and only installed where it is used
    except ImportError as error:
        raise ResourceError(
            f"Mooncake's Python package cannot be loaded ({error}); pip install mooncake-transfer-engine (machines with "
            "CUDA) or mooncake-transfer-engine-non-cuda, and libibverbs1, libnuma1 and libcurl4 of the system"
        ) from None
    return MooncakeDistributedStore


class StoreClient:
    """Any thread, several at once; every method but `health` may block for as long as Mooncake does.

    **No method may be called during or after `close`**: the library does not survive that.  The memory must stay mapped until
    then."""

    def __init__(self, store: Any) -> None:
        """Takes over a store that was set up."""
        self._store = store

    @classmethod
    def open(
        cls, setup: Mapping[str, str], memory: Sequence[Span], *, needs_memory: bool, logger: logging.Logger
    ) -> StoreClient:
        """Join.  `needs_memory`: transfers only work to and from registered memory.  Raises ResourceError."""
        store = store_class()()
        _set_up(store, setup)
        try:
            for span in memory:
                code = int(store.register_buffer(span.address, span.length))
                if code == Code.OK:
                    continue
                reason = f"Mooncake did not register {span.length} bytes of this server's memory: {name_of(code)}"
                if needs_memory:
                    raise ResourceError(f"{reason}; check `ulimit -l`, and start with --no-l1-use-lazy")
                logger.warning("%s; transfers go on without", reason)
        except BaseException:
            store.close()
            raise
        return cls(store)

    @property
    def reads_ranges(self) -> bool:
        """Can a part of an object be read?"""
        return hasattr(self._store, "get_into_ranges")

    def put(self, transfers: Sequence[Transfer]) -> Sequence[int]:
        """A code each.  What is there already is left as it is, and OK."""
        return list(self._store.batch_put_from(*_columns(transfers)))

    def get(self, transfers: Sequence[Transfer]) -> Sequence[int]:
        """The bytes that were written each, or a code.  INVALID_PARAMS where the object is longer than its buffer."""
        answers = [0] * len(transfers)
        left = list(range(len(transfers)))
        while left:
            # Of several buffers for one object, a call of the library fills one and says of all that it did.
            once = {transfers[at].name: at for at in reversed(left)}
            now = sorted(once.values())
            found = self._store.batch_get_into(*_columns([transfers[at] for at in now]))
            for at, answer in zip(now, found, strict=True):
                answers[at] = answer
            left = sorted(set(left).difference(now))
        return answers

    def exist(self, names: Sequence[str]) -> Sequence[int]:
        """1, 0, or a code each.  What is there is safe from Mooncake's eviction for a lease's time."""
        return list(self._store.batch_is_exist(list(names)))

    def remove(self, names: Sequence[str]) -> Sequence[int]:
        """A code each.  By force: leases of readers are not waited for."""
        store = self._store
        if hasattr(store, "batch_remove"):
            return list(store.batch_remove(list(names), True))
        return [_remove(store, name) for name in names]

    def size(self, name: str) -> int:
        """Bytes, or a code."""
        return int(self._store.get_size(name))

    def starts(self, transfers: Sequence[Transfer]) -> Sequence[int]:
        """Read the first `length` bytes of each object: what was read, or a code.  Only where it `reads_ranges`."""
        return [self.part(each, 0) for each in transfers]

    def part(self, transfer: Transfer, start: int) -> int:
        """Read `length` bytes of an object from `start` on: what was read, or a code.  Only where it `reads_ranges`."""
        name, address, length = transfer
        ((answers,),) = self._store.get_into_ranges([address], [[name]], [[[0]]], [[[start]]], [[[length]]])
        return int(answers[0]) if answers else int(Code.OBJECT_NOT_FOUND)

    def health(self) -> bool | None:
        """Does the master answer?  None: this release does not say."""
        check = getattr(self._store, "health_check", None)
        return None if check is None else check() == Code.OK

    def close(self) -> None:
        """Leave the store, with the memory that was given to it, and give the library's own back.  Takes a second or two."""
        store, self._store = self._store, None
        store.close()


def _columns(transfers: Sequence[Transfer]) -> tuple[list[str], list[int], list[int]]:
    return (
        [each.name for each in transfers],
        [each.address for each in transfers],
        [each.length for each in transfers],
    )


def _remove(store: Any, name: str) -> int:
    try:
        return int(store.remove(name, True))
    except TypeError:  # a release without force: what has a lease stays
        return int(store.remove(name))


def _set_up(store: Any, setup: Mapping[str, str]) -> None:
    try:
        code = int(store.setup(dict(setup)))
    except TypeError:  # a release from before settings were a dictionary
        if more := sorted(set(setup) - set(_POSITIONAL)):
            raise ResourceError(
                f"the installed Mooncake does not take the fields {', '.join(more)}; leave them out, or install a newer one"
            ) from None
        values = [int(setup[name]) if name in _SIZES else setup[name] for name in _POSITIONAL]
        code = int(store.setup(*values))
    if code != Code.OK:
        raise ResourceError(
            f"Mooncake could not join the store of master {setup['master_server_addr']} as {setup['local_hostname']}: "
            f"{name_of(code)}; its reason is in this server's error output (MC_LOG_LEVEL=INFO says more)"
        )
