"""The contract of a coordinator's state: the little that operators said, which must survive a coordinator.

Everything else that a coordinator knows is derived from its members' journals, and is not kept.

A plugin offers states with the hook `lmcache_coordinator_states`, which core does not know, so that it is an optional one:

    @hookimpl(optionalhook=True)
    def lmcache_coordinator_states() -> Sequence[Offer]:
        return [Offer("acme", "Quotas in Acme.", "lmcache_coordinator_acme.state:open_state", settings="...:AcmeSettings")]

`open(settings) -> CoordinatorState` may raise ResourceError; it must not wait for a state that does not answer.  `--state
acme:ADDRESS` gives the field `address` of the settings, and `--state '{"type": "acme", ...}'` any of them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from lmcache_client.errors import ConfigError, LMCacheError

KIND: Final = "coordinator_state"
KEY_BYTES_MAX: Final = 2048
VALUE_BYTES_MAX: Final = 64 * 1024
CALL_SECONDS: Final = 10.0
"""The longest that a call may take, `wait` apart."""


class StateConflictError(LMCacheError):
    """Another writer was first.  Read again, and decide again."""


class StateUnavailableError(LMCacheError):
    """The state cannot be read or written now.  The message says what does not answer, and what to look at.

    A write that raises it may have been made, or may be made later."""


class Versioned(NamedTuple):
    value: bytes
    revision: int
    """Of the write that made it; at least 1."""


class Reading(NamedTuple):
    revision: int
    """Of the whole state: at least that of each entry, and larger after each write."""
    entries: Mapping[str, Versioned]


class CoordinatorState(ABC):
    """Keys with values.  Safe from any thread.  Calls may block, for CALL_SECONDS at most, and raise StateUnavailableError."""

    shared: bool = False
    """Coordinators on several machines may use it at the same time."""
    durable: bool = True
    """What was written is there when it is opened again."""

    @abstractmethod
    def read(self, prefix: str) -> Reading:
        """Every key that begins with `prefix`, as it was at one moment after the call began: never older than a write that
        has returned, whichever coordinator made it."""

    @abstractmethod
    def write(self, key: str, value: bytes | None, revision: int | None = None) -> int:
        """Set a key, or remove it with None; durable when this returns.  `revision`: only if the key has this one now; 0: only
        if there is no such key; None: whatever is there.  Made once or not at all: never tried again after it may have been
        made.  Returns the state's new revision.  Raises StateConflictError."""

    @abstractmethod
    def wait(self, prefix: str, after: int, seconds: float) -> bool:
        """Wait until something below `prefix` was changed after the state had revision `after`, at most this long.  False:
        nothing was.  True is possible without a change."""

    @abstractmethod
    def acquire(self, name: str, holder: str, seconds: float) -> bool:
        """Take a lease, or renew it, for this long from some moment after the call began.  False: another holder has it, or may
        have it.  A holder that cannot renew it in time has lost it by the clock of the state, and must stop earlier, by
        its own: `seconds` after it began to ask."""

    @abstractmethod
    def release(self, name: str, holder: str) -> None:
        """Give a lease back.  No effect where another holder has it."""

    @abstractmethod
    def close(self) -> None: ...


class StateOffers(Protocol):
    """`CommandContext.plugins`"""

    def open(self, kind: str, name: str, settings: Mapping[str, Any]) -> Any: ...


def open_state(text: str, plugins: StateOffers) -> CoordinatorState:
    """What `--state` names.  Raises ConfigError, ResourceError."""
    name, settings = parse_state(text)
    state = plugins.open(KIND, name, settings)
    if not isinstance(state, CoordinatorState):
        raise ConfigError(f"--state {name}: the plugin opened a {type(state).__name__} and no CoordinatorState")
    return state


def parse_state(text: str) -> tuple[str, Mapping[str, Any]]:
    """`NAME:ADDRESS`, `memory`, a JSON object with `type`, or a path of an SQLite file.  Raises ConfigError."""
    if text.startswith("{"):
        try:
            given = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"--state: not JSON: {error}") from None
        if not isinstance(given.get("type"), str):
            raise ConfigError('--state: expected an object with a type, such as {"type": "sqlite", "address": "FILE"}')
        return given.pop("type"), given
    if text == "memory":
        return text, {}
    name, colon, address = text.partition(":")
    # a path with a colon is written ./a:b
    return (name, {"address": address}) if colon and name.isidentifier() else ("sqlite", {"address": text})
