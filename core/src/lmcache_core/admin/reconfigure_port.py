"""What the admin API needs to change a running server, and how it is told that something cannot be done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from lmcache_client.errors import LMCacheError
from lmcache_core.admin.schemas_reconfigure import AdapterState, ChangedSetting


class NoSuchAdapterError(LMCacheError):
    """The message names those that there are."""


class NotNowError(LMCacheError):
    """What is asked for is right, and cannot be done as things are.  The message says why, and what to do."""


class AdaptersPort(Protocol):
    """The L2 adapters of a running server.  Safe from any thread."""

    def states(self) -> list[AdapterState]:
        """Of all that there are, in the order in which loads ask them."""

    def state(self, name: str) -> AdapterState:
        """Of one that is there, or was removed not long ago.  Raises NoSuchAdapterError."""

    def add(self, values: Mapping[str, Any]) -> AdapterState:
        """Open one, given as for `--l2-adapter`; it is used when this returns.  Blocks for as long as that may take.
        Raises ConfigError for what is wrong with the values, NotNowError where it cannot be opened."""

    def drain(self, name: str) -> AdapterState:
        """Nothing new is stored there from now on.  Raises NoSuchAdapterError, NotNowError while it is removed."""

    def resume(self, name: str) -> AdapterState:
        """Take a drain back.  Raises as `drain` does."""

    def remove(self, name: str, deadline_seconds: float, force: bool) -> AdapterState:
        """Begin to remove it, or go on with less patience where that was begun.  Returns at once.  Raises
        NoSuchAdapterError."""


class SettingsPort(Protocol):
    """The settings that can be changed while the server runs.  Safe from any thread."""

    def running(self) -> Mapping[str, Any]:
        """By name, as they apply now, without secrets."""

    def change(self, values: Mapping[str, Any]) -> list[ChangedSetting]:
        """All of these, or none.  Blocks for as long as that may take.  Returns those that are others now.  Raises
        ConfigError for what is no value of a setting, NotNowError for what cannot be changed now, or not at all."""
