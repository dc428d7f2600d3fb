"""What a user may set in `kv_connector_extra_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final
from urllib.parse import urlsplit

PREFIX: Final = "lmcache."
DEFAULT_URL: Final = "tcp://127.0.0.1:5555"
_URL_CHARS_MAX: Final = 256
_STOCK_KEYS: Final = {"lmcache.mp.host": "lmcache.host", "lmcache.mp.port": "lmcache.port"}


@dataclass(frozen=True, slots=True)
class Settings:
    """One field for each key; keys are `lmcache.` and the field's name."""

    url: str = DEFAULT_URL
    """Where the server is; also as `lmcache.host` and `lmcache.port`."""
    lookup_timeout_ms: int = 500
    """How long a request waits for a server to accept its lookup; it is computed without the cache then."""
    prefetch_timeout_seconds: float = 15.0
    """How long a request waits for what a server that has accepted its lookup loads from its backends."""
    timeout_seconds: float = 10.0
    """How long a worker waits for the answer to a store or a retrieve."""
    heartbeat_seconds: float = 5.0
    """How often the server is asked whether it is there, and how long it may take to answer."""
    eager_lookups: int = 16
    """Number of requests that are looked up while they still wait in vLLM's queue; what is found is held for them."""
    save_decode: bool = False
    """Store what a model generated as well, not only prompts."""
    save_tail: bool = False
    """Store and look up the whole blocks behind a prompt's last whole chunk as one more object."""
    pd_role: str = "none"
    """`producer` (also `sender`) gives hand-offs, `receiver` takes them, `both` does both; with a role, tails are saved."""
    engine_url: str = ""
    """Where this engine's HTTP server is, as `http://10.0.0.1:8100`: a proxy learns it and the role from the coordinator."""
    handoff_progress_seconds: float = 5.0
    """How long a request waits for a hand-off of which nothing new is stored."""
    share_with_stock: bool = False
    """Use the stock connector's model name, which does not say what the bytes mean."""

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Settings:
        """Keys that do not begin with `lmcache.` belong to others and are left alone. Raises ValueError for an unknown
        key, and for a value of the wrong type or beyond its limits."""
        given: dict[str, Any] = {}
        for key, value in extra.items():
            known = _STOCK_KEYS.get(key, key)
            if not known.startswith(PREFIX):
                continue
            name = known.removeprefix(PREFIX)
            if name not in _READERS:
                raise ValueError(_unknown(key))
            if name in given:
                raise ValueError(f"'{key}' is given twice in kv_connector_extra_config, as '{known}' as well")
            given[name] = _READERS[name](key, value)
        host, port = given.pop("host", None), given.pop("port", None)
        if host is not None or port is not None:
            if "url" in given:
                raise ValueError("'lmcache.url' is given beside 'lmcache.host' or 'lmcache.port': give one of them")
            given["url"] = _joined(host or "127.0.0.1", port or 5555)
        if given.get("pd_role", "none") != "none":
            given["save_tail"] = True
        elif "engine_url" in given:
            raise ValueError("'lmcache.engine_url' has no effect without 'lmcache.pd_role': give both of them or none")
        return cls(**given)


def _joined(host: str, port: int) -> str:
    scheme, separator, address = host.rpartition("://")
    return f"{scheme or 'tcp'}{separator or '://'}{address}:{port}"


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"'{key}' is {value!r}; it is a text like \"127.0.0.1\"")
    return value


def _url(key: str, value: Any) -> str:
    text = _text(key, value)
    return text if "://" in text else f"tcp://{text}"


def _http_url(key: str, value: Any) -> str:
    try:
        parts = urlsplit(_text(key, value))
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or parts.path.strip("/") or parts.query or parts.username is not None or len(value) > _URL_CHARS_MAX:
        raise ValueError(f"'{key}' is {value!r}; it is an address like \"http://10.0.0.1:8100\"")
    return str(value).rstrip("/")


def _port(key: str, value: Any) -> int:
    port = int(value) if isinstance(value, str) and value.isdecimal() else value
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        raise ValueError(f"'{key}' is {value!r}; a port is a number from 1 to 65535")
    return port


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"'{key}' is {value!r}; it is true or false")
    return value


def _count(key: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"'{key}' is {value!r}; it is a whole number from 0")
    return value


def _seconds(key: str, value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 3600:
        raise ValueError(f"'{key}' is {value!r}; it is a number of seconds above 0, 3600 at most")
    return float(value)


def _pd_role(key: str, value: Any) -> str:
    if value not in _PD_ROLES:
        raise ValueError(f"'{key}' is {value!r}; it is one of {', '.join(_PD_ROLES)}")
    return _PD_ROLES[value]


_PD_ROLES: Final = {
    "none": "none",
    "producer": "producer",
    "sender": "producer",
    "receiver": "receiver",
    "both": "both",
}
_READERS: Final = {
    "url": _url,
    "host": _text,
    "port": _port,
    "lookup_timeout_ms": _count,
    "prefetch_timeout_seconds": _seconds,
    "timeout_seconds": _seconds,
    "heartbeat_seconds": _seconds,
    "eager_lookups": _count,
    "save_decode": _flag,
    "save_tail": _flag,
    "pd_role": _pd_role,
    "engine_url": _http_url,
    "handoff_progress_seconds": _seconds,
    "share_with_stock": _flag,
}


def _unknown(key: str) -> str:
    known = sorted(PREFIX + name for name in _READERS)
    close = get_close_matches(key, known, 1)
    nearest = f"; did you mean '{close[0]}'?" if close else "."
    return f"'{key}' in kv_connector_extra_config is not known{nearest} Known are {', '.join(known)}"
