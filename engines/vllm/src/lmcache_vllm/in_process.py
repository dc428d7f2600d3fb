"""The cache inside of vLLM, in place of a server: the scheduler's process opens it, workers find it by the engine's id.

lmcache-engine, and the server's core with it, is imported by that process alone, and only in this mode.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import socket
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmcache_client import LMCacheError
from lmcache_vllm.settings import PREFIX, Settings, is_known

if TYPE_CHECKING:
    from lmcache_core import LocalCache
    from lmcache_engine import LMCacheEngineConfig

logger = logging.getLogger(__name__)

END_SECONDS: Final = 5.0
"""vLLM kills an engine that takes longer to end."""
CLOSE_SECONDS: Final = 3.0
"""Of these, for writes to other tiers: workers end before, in `transfer_session.STOP_SECONDS` at most."""
STALE_SECONDS: Final = 60.0
"""A socket that is younger may belong to an engine that is about to listen."""
_VARIABLES: Final = "LMCACHE_"
_FILE_VARIABLE: Final = "LMCACHE_CONFIG_FILE"
_ALIKE: Final = 0.8
"""The likeness of a key and its misspelling. Variables of other programs, such as a service called lmcache, are less alike."""
_CONNECTOR_SETTINGS: Final = {
    "use_layerwise": "layerwise",
    "save_decode_cache": "save_decode",
    "save_unfull_chunk": "save_tail",
    "blocking_timeout_secs": "prefetch_timeout_seconds",
    "min_retrieve_tokens": "min_retrieve_tokens",
}
"""Keys of the configuration that are settings of the connector, and their names there."""
_BLENDING: Final = ("blend_min_tokens", "blend_recompute_ratios", "blend_thresholds", "blend_check_layers")
"""Further ones, which have one name, and which workers need, too. `blend_special_str` counts where blending is on by
`enable_blending`: it has a default there."""
_ROLE, _BLEND = f"{PREFIX}pd_role", f"{PREFIX}blend"


def split(extra: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of `kv_connector_extra_config` what is the connector's, and keys of the cache's configuration without their prefix:
    those are there in this mode alone."""
    if extra.get(f"{PREFIX}in_process") is not True:
        return dict(extra), {}
    own = {key: value for key, value in extra.items() if not key.startswith(PREFIX) or is_known(key)}
    overrides = {key.removeprefix(PREFIX): value for key, value in extra.items() if key not in own}
    if own.get(_ROLE, "none") != "none":
        overrides |= {"enable_pd": True, "pd_role": own[_ROLE]}
    if own.get(_BLEND, "off") != "off":
        overrides["enable_blending"] = True
    return own, overrides


def is_layerwise(extra: Mapping[str, Any]) -> bool:
    """Whether these settings, or in this mode the cache's configuration, say so. What is wrong with them is said elsewhere."""
    own, overrides = split(extra)
    if not own.get(f"{PREFIX}in_process") or f"{PREFIX}layerwise" in own:
        return own.get(f"{PREFIX}layerwise") is True
    with suppress(ImportError, LMCacheError):
        from lmcache_engine import LMCacheEngineConfig

        config = LMCacheEngineConfig.from_env(os.environ, **overrides)
        return bool(config.use_layerwise and not config.enable_blending)
    return False


def with_blending(settings: Settings, extra: Mapping[str, Any], overrides: Mapping[str, Any]) -> Settings:
    """The connector's settings, with those of blends that the cache's configuration gives and `extra` does not. A worker
    imports lmcache-engine only where that may be. Raises ValueError."""
    variables = (_FILE_VARIABLE, f"{_VARIABLES}ENABLE_BLENDING")
    if not settings.in_process or not ("enable_blending" in overrides or any(name in os.environ for name in variables)):
        return settings
    try:
        from lmcache_engine import LMCacheEngineConfig

        values = LMCacheEngineConfig.from_env(os.environ, **overrides).as_dict()
    except (ImportError, LMCacheError):  # said when the cache is opened
        return settings
    if not values["enable_blending"]:
        return settings
    named = [*_BLENDING] if _BLEND in extra else [*_BLENDING, "blend_special_str"]
    given = {f"{PREFIX}{name}": values[name] for name in named if values[name] not in (None, "")}
    return Settings.of({_BLEND: "all", **given, **extra})


def endpoint_of(engine_id: str) -> str:
    """Where the processes of one engine meet. Makes the folder. Raises ValueError where others could be met there."""
    folder = Path(tempfile.gettempdir(), f"lmcache-{os.geteuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ValueError(f"lmcache.in_process: {folder} cannot be made for a socket: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ValueError(
            f"lmcache.in_process: {folder} is not a folder of this user alone (mode 0700): remove it, or set TMPDIR"
        )
    return f"ipc://{folder}/{hashlib.sha256(engine_id.encode()).hexdigest()[:32]}.sock"


class InProcessCache:
    """What the scheduler's process has of the cache: all of it. Workers register with it as with a server."""

    def __init__(
        self, overrides: Mapping[str, Any], url: str, *, workers: int, block_tokens: int, number: int = 0
    ) -> None:
        """Opens it and serves it at `url`. `workers` of this machine map its memory, and it has as much for each of them;
        `block_tokens`: where blocks of all groups end together. `overrides`: keys of the configuration, over those of
        LMCACHE_CONFIG_FILE and LMCACHE_*. `number`: which of several engines of one configuration this is. Raises ValueError
        that says what is wrong, and what to do."""
        _check_environment()
        from lmcache_core import open_local

        began = time.monotonic()
        try:
            self.config = _configuration(overrides)
            if self.config.chunk_size % block_tokens:
                raise ValueError(
                    f"lmcache.in_process: 'chunk_size' is {self.config.chunk_size}, which is not a multiple of vLLM's blocks "
                    f"of {block_tokens}; change it, or vLLM's --block-size"
                )
            given = self.config.server_of(number)
            shared = {"l1_size_gb": given["l1_size_gb"] * workers, "l1_shared_memory": True}
            if "l1_init_size_gb" in given:
                shared["l1_init_size_gb"] = given["l1_init_size_gb"] * workers
            _check_alone(Path(url.removeprefix("ipc://")))
            self._cache: LocalCache = open_local({**given, **shared})
            try:
                self._cache.serve(url, workers)
            except BaseException:
                self._cache.close(0.0)
                raise
        except LMCacheError as error:
            own = (
                f" ('l1_size_gb' is 'max_local_cpu_size' for each of {workers} workers)"
                if "l1_size_gb" in str(error)
                else ""
            )
            raise ValueError(f"lmcache.in_process: {error}{own}") from None
        self._process = os.getpid()
        atexit.register(self.close)
        logger.info(
            "cache is open in this process url=%s l1_gb=%s adapters=%s peers=%s role=%s seconds=%.2f",
            url,
            shared["l1_size_gb"],
            ",".join(each["type"] for each in given["l2_adapter"]) or "none",
            given.get("p2p_advertise_url", "none"),
            self.config.role,
            time.monotonic() - began,
        )

    def applied(self, settings: Settings, extra: Mapping[str, Any]) -> Settings:
        """The connector's settings, with those that the cache's configuration gives and `extra` does not."""
        values = self.config.as_dict()
        taken = {name: values[key] for key, name in _CONNECTOR_SETTINGS.items() if f"{PREFIX}{name}" not in extra}
        if settings.blend != "off":  # its passes have steps of their own
            taken["layerwise"] = settings.layerwise
        if _ROLE not in extra:
            taken["pd_role"] = self.config.role
        applied = replace(settings, **taken)
        if applied.engine_url and applied.pd_role == "none":
            raise ValueError(
                "'lmcache.engine_url' has no effect without a role: set 'lmcache.pd_role', or leave it out"
            )
        return applied

    def close(self) -> None:
        """Write what is on its way to other tiers, as far as there is time, and give everything back. May be called again. Does
        nothing in a child after a fork: the cache is its parent's."""
        if os.getpid() != self._process:
            return
        atexit.unregister(self.close)
        if not self._cache.close(CLOSE_SECONDS):
            logger.warning("the engine ended before all chunks were written to other tiers; those are computed again")


def _check_environment() -> None:
    with suppress(PackageNotFoundError):
        public = version("lmcache")
        raise ValueError(
            f"lmcache.in_process: this environment has the public package, lmcache {public}, and both have a command and "
            "settings of one name: uninstall it, or leave 'lmcache.in_process' out and run `lmcache server`"
        )
    try:
        import lmcache_engine  # noqa: F401 - brings core
    except ImportError as error:
        raise ValueError(f"lmcache.in_process: {error}; install lmcache-vllm[in-process]") from None


def _configuration(overrides: Mapping[str, Any]) -> LMCacheEngineConfig:
    from lmcache_engine import LMCacheEngineConfig

    config = LMCacheEngineConfig.from_env(os.environ, **overrides)
    _check_variables(set(config.as_dict()))
    taken = (*_CONNECTOR_SETTINGS, *_BLENDING, "blend_special_str")
    for line in config.warnings:
        if not any(line.startswith(f"'{key}' has no effect") for key in taken):
            logger.warning("%s", line)
    return config


def _check_variables(keys: set[str]) -> None:
    """Raises ValueError for a variable that is nearly one of the configuration."""
    from lmcache_engine.config_keys import OLD_NAMES

    known = {f"{_VARIABLES}{key.upper()}" for key in keys | set(OLD_NAMES)} | {_FILE_VARIABLE}
    for name in sorted(os.environ):
        if not name.startswith(_VARIABLES) or name in known:
            continue
        if close := get_close_matches(name, known, 1, _ALIKE):
            raise ValueError(
                f"lmcache.in_process: no key is called '{name}'; did you mean '{close[0]}'? Unset it otherwise"
            )
        logger.warning("'%s' has no effect: no key of the configuration is called so", name)


def _check_alone(own: Path) -> None:
    """Removes sockets of engines that were killed. Raises ValueError where an engine listens at `own`, and does not end."""
    for path in own.parent.glob("*.sock"):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > STALE_SECONDS and not _is_listening(path):
                path.unlink()
    deadline = time.monotonic() + END_SECONDS
    while _is_listening(own):
        if time.monotonic() > deadline:
            raise ValueError(
                "lmcache.in_process: an engine of this id runs already; give each an 'engine_id' of its own in the "
                "kv_transfer_config, or none"
            )
        time.sleep(0.1)


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as caller:
        try:
            caller.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # too long a path, a full queue: others say so
            return path.exists()
    return True
