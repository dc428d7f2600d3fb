"""What a user may set in `kv_connector_extra_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from reprlib import repr as shown
from sys import float_info
from typing import Any, Final
from urllib.parse import urlsplit

PREFIX: Final = "lmcache."
DEFAULT_URL: Final = "tcp://127.0.0.1:5555"
BLEND_MODES: Final = ("off", "requests", "all")
LAYERS_MAX: Final = 16
"""Check layers of a blend."""
SEPARATOR_MAX: Final = 64
"""Characters or tokens of what is between documents."""
_URL_CHARS_MAX: Final = 256
_STOCK_KEYS: Final = {"lmcache.mp.host": "lmcache.host", "lmcache.mp.port": "lmcache.port"}


@dataclass(frozen=True, slots=True)
class Settings:
    """One field for each key; keys are `lmcache.` and the field's name."""

    url: str = DEFAULT_URL
    """Where the server is; also as `lmcache.host` and `lmcache.port`."""
    in_process: bool = False
    """No server: the cache is in the process of vLLM's scheduler (in_process.py), which has `url` to itself."""
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
    min_retrieve_tokens: int = 0
    """A request that would load fewer tokens loads none."""
    layerwise: bool = False
    """Load inside of the step, layer by layer, and copy each layer when it is computed."""
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
    blend: str = "off"
    """Whose prompts reuse chunks that are not a prefix, approximately: `off`, `requests` (those that ask), or `all`."""
    blend_selector: str = "cacheblend"
    """What chooses the tokens of reused chunks that are computed again."""
    blend_recompute_ratios: tuple[float, ...] = (0.15,)
    """The share of those tokens: one for all, or one for each check layer."""
    blend_check_layers: tuple[int, ...] = (2,)
    """Layers at which deviations are measured, ascending."""
    blend_thresholds: tuple[float, ...] = ()
    """Deviations above which tokens are computed whatever the share is: none, one for all, or one for each check layer."""
    blend_min_tokens: int = 256
    """Prompts with fewer tokens in reused chunks take their prefix only."""
    blend_step_tokens: int = 2048
    """Tokens of blends that one step computes at most."""
    blend_keep: bool = False
    """Store what blends computed over KV that is not exact, under a name of its own, for the next turn of a conversation."""
    blend_special_str: str | tuple[int, ...] = ""
    """What is between the documents of a prompt, as text or as token ids; empty: prompts are not cut."""

    def __post_init__(self) -> None:
        """Raises ValueError for settings that do not go together."""
        if self.layerwise and self.blend != "off":
            raise ValueError(
                "'lmcache.layerwise' does not go with 'lmcache.blend', whose passes have steps of their own"
            )

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
        if given.get("in_process") and "url" in given:
            raise ValueError(
                "'lmcache.url' is given beside 'lmcache.in_process', which has no server: give one of them"
            )
        if given.get("pd_role", "none") != "none":
            given["save_tail"] = True
        elif "engine_url" in given and not given.get("in_process"):  # there, the cache's configuration may say it
            raise ValueError("'lmcache.engine_url' has no effect without 'lmcache.pd_role': give both of them or none")
        if given.get("blend_special_str") and given.get("blend", "off") == "off":
            raise ValueError(
                "'lmcache.blend_special_str' has no effect without 'lmcache.blend': give both of them or none"
            )
        settings = cls(**given)
        settings._check_lengths()
        return settings

    def _check_lengths(self) -> None:
        layers = len(self.blend_check_layers)
        for name, values, least in (
            ("blend_recompute_ratios", self.blend_recompute_ratios, 1),
            ("blend_thresholds", self.blend_thresholds, 0),
        ):
            if len(values) not in (least, 1, layers):
                raise ValueError(
                    f"'{PREFIX}{name}' has {len(values)} values; it has one for all check layers, or one for each of the "
                    f"{layers} in '{PREFIX}blend_check_layers'"
                )


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


def _blend(key: str, value: Any) -> str:
    if value not in BLEND_MODES:
        raise ValueError(f"'{key}' is {value!r}; it is one of {', '.join(BLEND_MODES)}")
    return str(value)


def recompute_ratios(key: str, value: Any) -> tuple[float, ...]:
    """Raises ValueError unless it is a share, or a list of at most `LAYERS_MAX` shares that do not grow."""
    found = _numbers(key, value if isinstance(value, list | tuple) else [value], "[0.15]")
    if not found or max(found) > 1 or list(found) != sorted(found, reverse=True):
        raise ValueError(f"'{key}' is {shown(value)}; it is a list of shares from 0 to 1, none above the one before it")
    return found


def _thresholds(key: str, value: Any) -> tuple[float, ...]:
    return _numbers(key, value, "[0.5]")


def _check_layers(key: str, value: Any) -> tuple[int, ...]:
    found = _numbers(key, value, "[1]")
    layers = tuple(int(layer) for layer in found)
    if not layers or layers != found or list(layers) != sorted(set(layers)):
        raise ValueError(f"'{key}' is {shown(value)}; it is a list of ascending numbers of layers, from 0, like [1]")
    return layers


def _numbers(key: str, value: Any, like: str) -> tuple[float, ...]:
    are_numbers = isinstance(value, list | tuple) and all(
        isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number <= float_info.max
        for number in value[: LAYERS_MAX + 1]
    )
    if not are_numbers or len(value) > LAYERS_MAX:
        raise ValueError(f"'{key}' is {shown(value)}; it is a list of at most {LAYERS_MAX} numbers from 0, like {like}")
    return tuple(float(number) for number in value)


def _separator(key: str, value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str) and 0 < len(value) <= SEPARATOR_MAX:
        return value
    are_tokens = isinstance(value, list | tuple) and all(
        isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 1 << 31
        for token in value[:SEPARATOR_MAX]
    )
    if not are_tokens or not 0 < len(value) <= SEPARATOR_MAX:
        raise ValueError(
            f"'{key}' is {shown(value)}; it is a text like \" # # \", or a list of token ids, "
            f"of at most {SEPARATOR_MAX} characters or ids"
        )
    return tuple(value)


def _above_zero(key: str, value: Any) -> int:
    if not _count(key, value):
        raise ValueError(f"'{key}' is 0; it is a whole number from 1")
    return int(value)


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
    "in_process": _flag,
    "lookup_timeout_ms": _count,
    "prefetch_timeout_seconds": _seconds,
    "timeout_seconds": _seconds,
    "heartbeat_seconds": _seconds,
    "eager_lookups": _count,
    "min_retrieve_tokens": _count,
    "layerwise": _flag,
    "save_decode": _flag,
    "save_tail": _flag,
    "pd_role": _pd_role,
    "engine_url": _http_url,
    "handoff_progress_seconds": _seconds,
    "share_with_stock": _flag,
    "blend": _blend,
    "blend_selector": _text,
    "blend_recompute_ratios": recompute_ratios,
    "blend_check_layers": _check_layers,
    "blend_thresholds": _thresholds,
    "blend_min_tokens": _count,
    "blend_step_tokens": _above_zero,
    "blend_keep": _flag,
    "blend_special_str": _separator,
}


def is_known(key: str) -> bool:
    """Whether it is one of the connector's."""
    return _STOCK_KEYS.get(key, key).removeprefix(PREFIX) in _READERS


def _unknown(key: str) -> str:
    known = sorted(PREFIX + name for name in _READERS)
    close = get_close_matches(key, known, 1)
    nearest = f"; did you mean '{close[0]}'?" if close else "."
    return f"'{key}' in kv_connector_extra_config is not known{nearest} Known are {', '.join(known)}"
