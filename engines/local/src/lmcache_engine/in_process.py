"""A cache that one process of an engine opens, and that its other processes map: what the adapters of vLLM and SGLang share.

The server's core is imported where a cache is opened, and not by processes that only look for its endpoint."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import socket
import stat
import tempfile
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lmcache_client.errors import LMCacheError

if TYPE_CHECKING:
    from lmcache_core import LocalCache
    from lmcache_engine.config import LMCacheEngineConfig

END_SECONDS: Final = 5.0
"""An engine that was started again waits as long for the one before it to end."""
STALE_SECONDS: Final = 60.0
"""A socket that is younger may belong to an engine that is about to listen."""
_ALIKE: Final = 0.8
"""The likeness of a key and its misspelling. Variables of other programs, such as a service called lmcache, are less alike."""


class ServedCache:
    """An open cache, answering at `url`.  Any thread of the process that opened it."""

    def __init__(self, cache: LocalCache, url: str, drain_seconds: float, logger: logging.Logger) -> None:
        self.cache, self.url = cache, url
        self._drain_seconds, self._logger, self._process = drain_seconds, logger, os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """Write what is on its way to other tiers, as far as there is time, and give everything back. May be called again. Does
        nothing in a child after a fork: the cache is its parent's."""
        if os.getpid() != self._process:
            return
        atexit.unregister(self.close)
        if not self.cache.close(self._drain_seconds):
            self._logger.warning(
                "the engine ended before all chunks were written to other tiers; those are computed again"
            )


@dataclass(frozen=True, slots=True)
class InProcessMode:
    """Of one kind of engine.  Its methods raise ValueError that says what is wrong, and what to do."""

    option: str
    """As users write it."""
    requirement: str
    """What is installed for it."""
    drain_seconds: float
    """For writes to other tiers when the engine ends."""
    logger: logging.Logger
    """Of the adapter: vLLM shows the lines of no other package."""

    def endpoint(self, engine_id: str) -> str:
        """Where the processes of one engine meet. Makes the folder; refuses one where others could be met."""
        folder = Path(tempfile.gettempdir(), f"lmcache-{os.geteuid()}")
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
        except OSError as error:
            raise ValueError(f"{self.option}: {folder} cannot be made for a socket: {error.strerror}") from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ValueError(
                f"{self.option}: {folder} is not a folder of this user alone (mode 0700): remove it, or set TMPDIR"
            )
        return f"ipc://{folder}/{hashlib.sha256(engine_id.encode()).hexdigest()[:32]}.sock"

    def configuration(
        self, overrides: Mapping[str, Any], *, file: str = "", taken: Collection[str] = ()
    ) -> LMCacheEngineConfig:
        """Of a file (`file`, or the one that LMCACHE_CONFIG_FILE names), over it LMCACHE_* variables, over both `overrides`.
        What has no effect is logged, but for the keys in `taken`."""
        self._check_environment()
        from lmcache_engine.config import FILE_VARIABLE, LMCacheEngineConfig

        environment = {**os.environ, FILE_VARIABLE: file} if file else os.environ
        try:
            config = LMCacheEngineConfig.from_env(environment, **overrides)
        except LMCacheError as error:
            raise ValueError(f"{self.option}: {error}") from None
        self._check_variables(set(config.as_dict()))
        for line in config.warnings:
            if not any(line.startswith(f"'{key}' has no effect") for key in taken):
                self.logger.warning("%s", line)
        return config

    def open(
        self, config: LMCacheEngineConfig, url: str, *, workers: int, number: int = 0, mappings: int = 0
    ) -> ServedCache:
        """`workers` of this machine map its memory, and it has as much for each of them. `mappings`: how often in all, where
        that is another number. `number`: which of several engines of one configuration this is."""
        self._check_environment()
        try:
            from lmcache_core import open_local
        except ImportError as error:
            raise ValueError(f"{self.option}: {error}; install {self.requirement}") from None
        began = time.monotonic()
        try:
            given = config.server_of(number)
            shared = {"l1_size_gb": given["l1_size_gb"] * workers, "l1_shared_memory": True}
            if "l1_init_size_gb" in given:
                shared["l1_init_size_gb"] = given["l1_init_size_gb"] * workers
            self._check_alone(Path(url.removeprefix("ipc://")))
            cache = open_local({**given, **shared})
            try:
                cache.serve(url, mappings or workers)
            except BaseException:
                cache.close(0.0)
                raise
        except LMCacheError as error:
            own = (
                f" ('l1_size_gb' is 'max_local_cpu_size' for each of {workers} workers)"
                if "l1_size_gb" in str(error)
                else ""
            )
            raise ValueError(f"{self.option}: {error}{own}") from None
        self.logger.info(
            "cache is open in this process url=%s l1_gb=%s adapters=%s peers=%s role=%s seconds=%.2f",
            url,
            shared["l1_size_gb"],
            ",".join(each["type"] for each in given["l2_adapter"]) or "none",
            given.get("p2p_advertise_url", "none"),
            config.role,
            time.monotonic() - began,
        )
        return ServedCache(cache, url, self.drain_seconds, self.logger)

    def _check_environment(self) -> None:
        with suppress(PackageNotFoundError):
            public = version("lmcache")
            raise ValueError(
                f"{self.option}: this environment has the public package, lmcache {public}, and both have a command and "
                f"settings of one name: uninstall it, or leave '{self.option}' out and run `lmcache server`"
            )

    def _check_variables(self, keys: set[str]) -> None:
        """Raises ValueError for a variable that is nearly one of the configuration."""
        from lmcache_engine.config import FILE_VARIABLE, PREFIX
        from lmcache_engine.config_keys import OLD_NAMES

        known = {f"{PREFIX}{key.upper()}" for key in keys | set(OLD_NAMES)} | {FILE_VARIABLE}
        for name in sorted(os.environ):
            if not name.startswith(PREFIX) or name in known:
                continue
            if close := get_close_matches(name, known, 1, _ALIKE):
                raise ValueError(
                    f"{self.option}: no key is called '{name}'; did you mean '{close[0]}'? Unset it otherwise"
                )
            self.logger.warning("'%s' has no effect: no key of the configuration is called so", name)

    def _check_alone(self, own: Path) -> None:
        """Removes sockets of engines that were killed. Raises ValueError where an engine listens at `own`, and does not end."""
        for path in own.parent.glob("*.sock"):
            with suppress(OSError):
                if time.time() - path.lstat().st_mtime > STALE_SECONDS and not _is_listening(path):
                    path.unlink()
        deadline = time.monotonic() + END_SECONDS
        while _is_listening(own):
            if time.monotonic() > deadline:
                raise ValueError(
                    f"{self.option}: an engine of this id runs already; give each an 'engine_id' of its own in the "
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
