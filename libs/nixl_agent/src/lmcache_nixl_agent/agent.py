"""One NIXL agent with one backend, in the few words that its users need."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, NewType

from lmcache_nixl_agent.binding import NixlLibrary, nixl_library, unusable

Handle = NewType("Handle", object)
Registration = NewType("Registration", object)


class Segment(Enum):
    """What NIXL calls the kinds of places."""

    MEMORY = "DRAM"
    FILE = "FILE"
    OBJECT = "OBJ"


class Extent(NamedTuple):
    """A place that is registered with NIXL: an address, in this process or in a peer's, or an offset in a file (`device` is its
    descriptor) or object (a number)."""

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
        self._agent = agent
        self._backend: Final = backend

    @classmethod
    def open(cls, name: str, backend: str, params: Mapping[str, str]) -> NixlAgent:
        """Start NIXL with this backend alone: others would open devices and listeners without need.  Raises
        ResourceError where it is not available, without a word of `params`, which may hold secrets."""
        library = nixl_library(name)
        agent_name = f"lmcache-{name}"
        agent = library.api.nixl_agent(agent_name, library.api.nixl_agent_config(backends=[]))
        try:
            agent.create_backend(backend, dict(params))
        except library.errors as error:
            raise unusable(name, backend, library, error) from None
        return cls(agent_name, library, agent, backend)

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

    def metadata(self) -> bytes:
        """How a peer connects to this agent, and which of its memory is registered now.  Who has it can read and write all of
        that memory, so give it only to known peers, over an encrypted connection."""
        try:
            return bytes(self._agent.get_agent_metadata())
        except self._library.errors as error:
            raise _failed("describe its memory", error) from None

    def metadata_of(self, registration: Registration, *, connects: bool) -> bytes:
        """As `metadata`, of what was registered so alone; `connects`: with how to connect, else for peers that know it."""
        try:
            return bytes(self._agent.get_partial_agent_metadata(registration, connects, [self._backend]))
        except self._library.errors as error:
            raise _failed("describe its memory", error) from None

    def add_peer(self, metadata: bytes) -> str:
        """Connect to the agent that gave this, or learn what it has registered since; returns its name.  NIXL parses the
        bytes, so take them only from a known peer."""
        try:
            return str(self._agent.add_remote_agent(metadata).decode())
        except self._library.errors as error:
            raise _failed("connect to a peer", error) from None

    def remove_peer(self, peer: str) -> None:
        """Disconnect.  Every transfer with it has been released."""
        try:
            self._agent.remove_remote_agent(peer)
        except self._library.errors as error:
            raise _failed("disconnect from a peer", error) from None

    def prepare(self, *, writes: bool, memory: Extent, segment: Segment, place: Extent, peer: str = "") -> Handle:
        """A transfer of registered memory to or from a registered place, the peer's where one is named, not begun yet;
        `release` is due."""
        try:
            local = self._agent.get_xfer_descs([(memory.at, memory.length, memory.device)], Segment.MEMORY.value)
            remote = self._agent.get_xfer_descs([(place.at, place.length, place.device)], segment.value)
            verb = "WRITE" if writes else "READ"
            return Handle(
                self._agent.initialize_xfer(verb, local, remote, peer or self._name, backends=[self._backend])
            )
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

    def close(self) -> None:
        """End NIXL, with its connections and listeners: nothing touches registered memory any more, also for transfers that
        were under way, whose handles are released and forgotten.  Every other method raises OSError from here on."""
        self._agent = _Ended()

    def exists(self, place: Extent) -> bool:
        """Is there an object of this name?  Waits for the store's answer."""
        try:
            (found,) = self._agent.query_memory([tuple(place)], self._backend, Segment.OBJECT.value)
        except self._library.errors as error:
            raise _failed("ask for an object", error) from None
        return found is not None


class _Ended:
    """In place of a NIXL that was ended."""

    def __getattr__(self, name: str) -> Any:
        raise OSError(errno.ESHUTDOWN, "NIXL was ended")


def _failed(what: str, error: Exception | None) -> OSError:
    return OSError(errno.EIO, f"NIXL could not {what} ({error or 'no reason given'})")
