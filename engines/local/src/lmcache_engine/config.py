"""Configuration of an engine: keys of a YAML file and `LMCACHE_*` variables, and the server's settings that follow."""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from lmcache_client.errors import ConfigError
from lmcache_engine.config_keys import KEYS, OLD_NAMES, Fate
from lmcache_engine.peers import ROLES, l1_size_gb, role
from lmcache_engine.server_settings import asks_memory_alone, server_settings, tiers

PREFIX: Final = "LMCACHE_"
FILE_VARIABLE: Final = "LMCACHE_CONFIG_FILE"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_HASH_SEED: Final = "vllm-none-hash"
_SIZES: Final = ("chunk_size", "blocking_timeout_secs", "pin_timeout_sec")
"""0 makes no sense."""
_SHARES: Final = ("lazy_memory_initial_ratio",)
FILE_BYTES_MAX: Final = 2**20
VALUES_MAX: Final = 10_000
"""With what aliases repeat: a few lines of them can mean more than fits any memory."""


class LMCacheEngineConfig:
    """Checked values by key, as attributes; never changed.

    `warnings` says, a line each, what was given and has no effect here, and which names are old."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Raises ConfigError that names the key: unknown, of another type, out of range, or refused here."""
        self.warnings: list[str] = []
        given = {self._name(name): value for name, value in values.items()}
        self._values = {name: key.default for name, key in KEYS.items()}
        self._values |= {name: _checked(name, value) for name, value in given.items()}
        self._check(given)
        self._values["save_unfull_chunk"] |= self._values["enable_pd"] or self._values["enable_blending"]

    @classmethod
    def from_defaults(cls, **values: Any) -> LMCacheEngineConfig:
        return cls(values)

    @classmethod
    def from_file(cls, path: str | Path, **overrides: Any) -> LMCacheEngineConfig:
        """Of a YAML file.  Raises ConfigError where it cannot be read."""
        return cls({**read_file(Path(path)), **overrides})

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ, **overrides: Any) -> LMCacheEngineConfig:
        """The file that LMCACHE_CONFIG_FILE names, over it each LMCACHE_* variable of a key, over both `overrides`."""
        path = environment.get(FILE_VARIABLE)
        return cls({**(read_file(Path(path)) if path else {}), **variables(environment), **overrides})

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"no key of the configuration is called '{name}'") from None

    def as_dict(self) -> dict[str, Any]:
        """All keys, with their values."""
        return dict(self._values)

    @property
    def hash_algorithm(self) -> str:
        return "sha256_cbor" if str(self.pre_caching_hash_algorithm).startswith("sha256_cbor") else "blake3"

    @property
    def hash_seed(self) -> str:
        """Of sha256_cbor, as a server has it."""
        return os.environ.get("PYTHONHASHSEED", _HASH_SEED)

    @property
    def server(self) -> dict[str, Any]:
        """The settings for `lmcache_core.open_local`.  Raises ConfigError for what has no adapter here."""
        return self.server_of(0)

    def server_of(self, worker: int) -> dict[str, Any]:
        """The same, of one of several workers that have a cache each."""
        return server_settings(self._values, self.hash_algorithm, worker)

    @property
    def role(self) -> str:
        """Of hand-offs: `producer`, `receiver`, `both` or `none`.  Raises ConfigError."""
        return role(self._values)

    @property
    def tiers(self) -> list[str]:
        """Names of the configured tiers."""
        return tiers(self._values)

    def asks_memory_alone(self, search_range: Sequence[str] | None = None) -> bool:
        """Whether lookups do, by the range of one or by `retrieve_locations`.  Raises ConfigError for a range between."""
        return asks_memory_alone("search_range", search_range, self.tiers) or asks_memory_alone(
            "retrieve_locations", self.retrieve_locations, self.tiers
        )

    def _name(self, name: str) -> str:
        if name in KEYS:
            return name
        if new := OLD_NAMES.get(name):
            self.warnings.append(f"'{name}' is an old name; it is called '{new}'")
            return new
        guess = "".join(difflib.get_close_matches(name, KEYS, n=1))
        raise ConfigError(f"no key is called '{name}'" + (f"; did you mean '{guess}'?" if guess else ""))

    def _check(self, given: Mapping[str, Any]) -> None:
        for name in given:
            key, value = KEYS[name], self._values[name]
            if value == key.default:
                continue
            if key.fate is Fate.REFUSED:
                raise ConfigError(f"'{name}' is {value!r}: {key.text}")
            if key.fate is Fate.NO_EFFECT:
                self.warnings.append(f"'{name}' has no effect: {key.text}")
        if self._values["pd_role"] not in (None, *ROLES):
            raise ConfigError(f"'pd_role' is {self._values['pd_role']!r:.80}: expected one of {', '.join(ROLES)}")
        if self._values["pd_role"] and not self._values["enable_pd"]:
            self.warnings.append("'pd_role' has no effect without 'enable_pd'")
        if not l1_size_gb(self._values):
            raise ConfigError(
                "'max_local_cpu_size' is 0: every tier needs memory to copy through, with 'local_cpu: false', too; give "
                "it at least 0.1"
            )
        if self._values["remote_serde"] not in ("naive", None):
            raise ConfigError(f"'remote_serde' is '{self._values['remote_serde']}': {KEYS['remote_serde'].text}")


def read_file(path: Path) -> dict[str, Any]:
    """Keys and values.  Raises ConfigError."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise ConfigError(f"{path}: longer than {FILE_BYTES_MAX} characters, which is the most")
        values = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:  # a date that is none is a ValueError
        raise ConfigError(f"{path}: cannot be read: {str(error).splitlines()[0]}") from None
    if not _is_small(values):
        raise ConfigError(f"{path}: more than {VALUES_MAX} values, with those that aliases repeat")
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise ConfigError(f"{path}: expected keys and values, such as 'chunk_size: 256'")
    return values


def _is_small(value: Any) -> bool:
    found, waiting = 0, [value]
    while waiting and found <= VALUES_MAX:
        value = waiting.pop()
        found += 1
        if isinstance(value, dict | list | set):
            waiting += [*value, *value.values()] if isinstance(value, dict) else value
    return found <= VALUES_MAX


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Of the variables, those that give a key; others are not this library's."""
    known = {*KEYS, *OLD_NAMES}
    names = ((name, name.removeprefix(PREFIX).lower()) for name in environment if name.startswith(PREFIX))
    return {key: environment[name] for name, key in names if key in known}


def _checked(name: str, value: Any) -> Any:
    key = KEYS[name]
    if value is None or (
        isinstance(value, str) and value.strip().lower() in ("", "none", "null") and key.kind != "str"
    ):
        return key.default
    try:
        checked = _READERS[key.kind](value)
    except (TypeError, ValueError):
        # What is nested may be huge by its aliases, and has passwords, as the JSON of `extra_config` has.
        is_shown = key.kind != "json" and not isinstance(value, list | dict)
        shown = f"{value!r:.80}" if is_shown else f"of type {type(value).__name__}"
        raise ConfigError(f"'{name}' is {shown}: expected {_WORDS[key.kind]}") from None
    if isinstance(checked, int | float) and not isinstance(checked, bool):
        _check_number(name, checked, key.default)
    return checked


def _check_number(name: str, value: float, default: Any) -> None:
    if math.isnan(value) or value < 0 or (math.isinf(value) and value != default):
        raise ConfigError(f"'{name}' is {value}: expected a number that is not negative")
    if name in _SIZES and not value:
        raise ConfigError(f"'{name}' is 0: expected more")
    if name in _SHARES and value > 1:
        raise ConfigError(f"'{name}' is {value}: expected a share, 0 to 1")


def _bool(value: Any) -> bool:
    word = str(value).strip().lower()
    if word not in (*_TRUE, *_FALSE):
        raise ValueError
    return word in _TRUE


def _int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value)


def _text(value: Any) -> str:
    if isinstance(value, list | dict):
        raise ValueError
    return str(value)


def _list(read: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def read_list(value: Any) -> list[Any]:
        parts = value.strip().strip("[]").split(",") if isinstance(value, str) else value
        return [
            read(each.strip() if isinstance(each, str) else each)
            for each in (parts if isinstance(parts, list) else [parts])
        ]

    return read_list


def _json(value: Any) -> dict[str, Any]:
    found = json.loads(value) if isinstance(value, str) else value
    if not isinstance(found, dict):
        raise ValueError
    return found


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bool": _bool,
    "int": _int,
    "float": _float,
    "str": _text,
    "ints": _list(_int),
    "floats": _list(_float),
    "strs": _list(_text),
    "json": _json,
}
_WORDS: Final = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "ints": "whole numbers",
    "floats": "numbers",
    "strs": "texts",
    "json": "keys and values",
}
