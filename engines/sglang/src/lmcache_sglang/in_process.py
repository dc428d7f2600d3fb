"""The cache inside of SGLang, in place of a server: one rank opens it, and all ranks of the engine map its memory.

lmcache-engine, and the server's core with it, is imported by that rank alone, and only in this mode.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from lmcache_client import ConfigError
from lmcache_sglang.settings import LinkerSettings

if TYPE_CHECKING:
    from lmcache_engine import LMCacheEngineConfig
    from lmcache_engine.in_process import ServedCache

logger = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 6.0
"""For writes to other tiers: SGLang kills a scheduler that takes more than 15 s to end, and copies may have taken 5 s."""
_REQUIREMENT: Final = "lmcache-sglang[in-process]"


def joined(settings: LinkerSettings, server_args: Any, links: int) -> tuple[LinkerSettings, ServedCache | None]:
    """The settings with the address of the engine's cache in this mode, and that cache in the rank that opened it.  All ranks
    of the engine call it together, and then map its memory `links` times each.  Raises ValueError in all of them where it
    cannot be opened, and ConfigError for several machines."""
    if not settings.in_process:
        return settings, None
    if server_args.nnodes > 1:
        raise ConfigError(
            f"in_process with --nnodes {server_args.nnodes}: ranks of one machine map one memory; run `lmcache server` on "
            "each, and leave in_process out"
        )
    from sglang.srt.distributed.parallel_state import get_world_group
    from sglang.srt.runtime_context import get_parallel

    return joined_by(settings, get_world_group().cpu_group, links, get_parallel().dp_rank or 0)


def joined_by(
    settings: LinkerSettings, group: Any, links: int, number: int
) -> tuple[LinkerSettings, ServedCache | None]:
    """`group`: all ranks of the engine, by their CPUs.  `number`: which of several engines of one configuration this is."""
    from torch import distributed

    cache, failure, answer = None, None, ["", ""]
    if not distributed.get_rank(group):
        try:
            cache = _opened(settings, distributed.get_world_size(group), links, number)
            answer[0] = cache.url
        except Exception as error:  # noqa: BLE001 - the others wait for an answer, whatever happened
            failure, answer[1] = error, str(error)
    try:
        distributed.broadcast_object_list(answer, distributed.get_global_rank(group, 0), group)
    except BaseException:
        if cache is not None:
            cache.close()
        raise
    url, message = answer
    if not url:
        raise failure or ValueError(message)
    return replace(settings, url=url), cache


def _opened(settings: LinkerSettings, ranks: int, links: int, number: int) -> ServedCache:
    """Raises ValueError."""
    try:
        from lmcache_engine.in_process import InProcessMode
    except ImportError as error:
        raise ValueError(
            f"in_process: {error}; install {_REQUIREMENT}, where the public package, lmcache, is not"
        ) from None
    mode = InProcessMode("in_process", _REQUIREMENT, CLOSE_SECONDS, logger)
    config = mode.configuration({}, file=settings.config_file)
    _check(config)
    return mode.open(config, mode.endpoint(secrets.token_hex()), workers=ranks, mappings=ranks * links, number=number)


def _check(config: LMCacheEngineConfig) -> None:
    """Logs what has no effect.  Raises ValueError."""
    from lmcache_engine.config_keys import KEYS, SGLANG_NO_EFFECT, SGLANG_REFUSED

    for key, reason in SGLANG_REFUSED.items():
        if getattr(config, key):
            raise ValueError(f"in_process: '{key}' is {getattr(config, key)}: {reason}; leave it out")
    for key, reason in SGLANG_NO_EFFECT.items():
        if getattr(config, key) != KEYS[key].default:
            logger.warning("'%s' has no effect: %s", key, reason)
