"""One NIXL agent with one storage backend, in the few words that the adapters use."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, NewType

from lmcache_l2_nixl.nixl_package import NixlLibrary, nixl_library, unusable

Handle = NewType("Handle", object)
Registration = NewType("Registration", object)


class Segment(Enum):
    """What NIXL calls the kinds of places."""

    MEMORY = "DRAM"
    FILE = "FILE"
    OBJECT = "OBJ"


class Extent(NamedTuple):
    """A place that is registered with NIXL: an address, or an offset in a file (`device` is its descriptor) or object (a
    number)."""

    at: int
    length: int
    device: int = 0
    name: str = ""
    """Of an object: what the store calls it."""


class NixlAgent:
    """Used by one thread at a time, since NIXL's own locks are off.  Raises OSError where NIXL fails; its message says what
    NIXL said, which is only the kind of fault."""

    def __init__(self, name: str, library: NixlLibrary, agent: Any, backend: str) -> None:
        """`name` is the agent's, which it calls itself by as the other side of each transfer."""
        self._name: Final = name
        self._library: Final = library
        self._agent: Final = agent
        self._backend: Final = backend

    @classmethod
    def open(cls, adapter: str, backend: str, params: Mapping[str, str]) -> NixlAgent:
        """Start NIXL with this backend alone: others would open devices and listeners without need.  Raises
        ResourceError where it is not available, without a word of `params`, which may hold secrets."""
        library = nixl_library(adapter)
        name = f"lmcache-{adapter}"
        agent = library.api.nixl_agent(name, library.api.nixl_agent_config(backends=[]))
        try:
            agent.create_backend(backend, dict(params))
        except library.errors as error:
            raise unusable(adapter, backend, library, error) from None
        return cls(name, library, agent, backend)

    def register(self, segment: Segment, extents: Sequence[Extent]) -> Registration:
        """Memory or places that transfers may name from here on, until `deregister`."""
        places = [(extent.at, extent.length, extent.device, extent.name) for extent in extents]
        try:
            return Registration(self._agent.register_memory(places, segment.value, backends=[self._backend]))
        except self._library.errors as error:
            raise _failed("register", error) from None

    def deregister(self, registration: Registration) -> None:
        try:
            self._agent.deregister_memory(registration, backends=[self._backend])
        except self._library.errors as error:
            raise _failed("deregister", error) from None

    def prepare(self, *, writes: bool, memory: Extent, segment: Segment, place: Extent) -> Handle:
        """A transfer of registered memory to or from a registered place, not begun yet; `release` is due."""
        try:
            local = self._agent.get_xfer_descs([(memory.at, memory.length, memory.device)], Segment.MEMORY.value)
            remote = self._agent.get_xfer_descs([(place.at, place.length, place.device)], segment.value)
            verb = "WRITE" if writes else "READ"
            return Handle(self._agent.initialize_xfer(verb, local, remote, self._name, backends=[self._backend]))
        except self._library.errors as error:
            raise _failed("prepare a transfer", error) from None

    def begin(self, handle: Handle) -> None:
        """May block as long as the backend takes to be asked: buffered files are written here."""
        try:
            state = self._agent.transfer(handle)
        except self._library.errors as error:
            raise _failed("begin a transfer", error) from None
        if state == "ERR":
            raise _failed("begin a transfer", None)

    def has_ended(self, handle: Handle) -> bool:
        """Moves the transfer on, and says whether it has been carried out; raises where it has failed."""
        try:
            state = self._agent.check_xfer_state(handle)
        except self._library.errors as error:
            raise _failed("carry out a transfer", error) from None
        if state == "ERR":
            raise _failed("carry out a transfer", None)
        return bool(state == "DONE")

    def release(self, handle: Handle) -> bool:
        """False: it is still under way and touches its memory; ask again."""
        try:
            self._agent.release_xfer_handle(handle)
        except self._library.errors:
            return False
        return True

    def exists(self, place: Extent) -> bool:
        """Is there an object of this name?  Waits for the store's answer."""
        try:
            (found,) = self._agent.query_memory([tuple(place)], self._backend, Segment.OBJECT.value)
        except self._library.errors as error:
            raise _failed("ask for an object", error) from None
        return found is not None


def _failed(what: str, error: Exception | None) -> OSError:
    return OSError(errno.EIO, f"NIXL could not {what} ({error or 'no reason given'})")
