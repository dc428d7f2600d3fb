"""What a user writes as `linker_extra_config`, or as `extra_config` of HiCache."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Self

from lmcache_client import ConfigError

_PLACES: Final = ("url", "host", "port")
_OF_A_CACHE: Final = ("in_process", "config_file")
"""Of a cache in SGLang's own process, which the linker alone has."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Raises ConfigError, naming the setting, for what cannot be meant."""

    place: ClassVar[str] = "extra_config"
    """Where a user writes them."""
    of_engine: ClassVar[tuple[str, ...]] = ()
    """What SGLang reads at the same place."""
    url: str = "tcp://127.0.0.1:5555"
    lookup_timeout_ms: int = 500
    """How long a server may be silent in a lookup.  After one that was silent for longer, lookups find nothing until it has
    answered a ping."""
    prefetch_timeout_seconds: float = 2.0
    """Longest wait for a lookup while the server answers, and reads pages from disk or another tier."""
    timeout_seconds: float = 10.0
    """Of every other request."""
    heartbeat_seconds: float = 5.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value, default = getattr(self, field.name), field.default
            numbers = isinstance(default, int | float) and not isinstance(default, bool)
            alike = (
                isinstance(value, int | float) and not isinstance(value, bool)
                if numbers
                else type(value) is type(default)
            )
            if not alike or (numbers and isinstance(default, int) and not isinstance(value, int)):
                raise ConfigError(f"{field.name} is {value!r}: a value like {default!r} belongs there")
            if numbers and not 0 < value < math.inf:
                raise ConfigError(f"{field.name} is {value!r}; it must be above 0, and a number")

    @classmethod
    def read(cls, given: Mapping[str, Any] | None) -> Self:
        """`host` and `port` may take the place of `url`."""
        said = dict(given or {})
        known = [*_PLACES, *(field.name for field in fields(cls) if field.name != "url"), *cls.of_engine]
        for name in said:
            if name in _OF_A_CACHE and name not in known:
                raise ConfigError(
                    f"{cls.place} has '{name}', but HiCacheNode has no cache in SGLang's process, as NodeLinker has: run "
                    "`lmcache server` on this machine, and give its url"
                )
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean '{near[0]}'?" if near else ""
                raise ConfigError(f"{cls.place} has '{name}', which is unknown{hint} (known: {', '.join(known)})")
        if said.get("in_process") and (places := [name for name in _PLACES if name in said]):
            raise ConfigError(f"{cls.place} has {places[0]} beside in_process, which has no server: give one of them")
        if "config_file" in said and not said.get("in_process"):
            raise ConfigError(
                f"{cls.place} has config_file without in_process: a server has a configuration of its own; set in_process "
                "to true, or leave config_file out"
            )
        if "host" in said or "port" in said:
            if "url" in said:
                raise ConfigError(f"{cls.place} has url beside host or port: one of them says where the server is")
            said["url"] = f"tcp://{said.pop('host', '127.0.0.1')}:{said.pop('port', 5555)}"
        return cls(**{name: value for name, value in said.items() if name not in cls.of_engine})


@dataclass(frozen=True, slots=True)
class LinkerSettings(LinkSettings):
    """A step of the scheduler waits for lookups."""

    place: ClassVar[str] = "linker_extra_config"
    min_load_pages: int = 2
    """Fewer are computed."""
    store: bool = True
    """False: only load."""
    in_process: bool = False
    """No server: one rank opens a cache in its process (in_process.py), whose address becomes `url`."""
    config_file: str = ""
    """Its configuration; empty: that of LMCACHE_CONFIG_FILE, if any.  LMCACHE_* variables go before both."""


@dataclass(frozen=True, slots=True)
class HiCacheSettings(LinkSettings):
    """A thread of its own waits for lookups."""

    of_engine: ClassVar[tuple[str, ...]] = ("backend_name", "module_path", "class_name", "interface_v1")
    lookup_timeout_ms: int = 2_000
