"""The cache inside of vLLM, in place of a server: the scheduler's process opens it, workers find it by the engine's id.

lmcache-engine is imported in this mode alone, and the server's core by the scheduler's process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from lmcache_client import LMCacheError
from lmcache_vllm.settings import PREFIX, Settings, is_known

if TYPE_CHECKING:
    from lmcache_engine.in_process import InProcessMode

logger = logging.getLogger(__name__)

CLOSE_SECONDS: Final = 3.0
"""For writes to other tiers: vLLM kills an engine that takes more than 5 s to end, and workers end before, in
`transfer_session.STOP_SECONDS` at most."""
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
    variables = ("LMCACHE_CONFIG_FILE", "LMCACHE_ENABLE_BLENDING")
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


def _mode() -> InProcessMode:
    requirement = "lmcache-vllm[in-process]"
    try:
        from lmcache_engine.in_process import InProcessMode
    except ImportError as error:
        raise ValueError(
            f"{PREFIX}in_process: {error}; install {requirement}, where the public package, lmcache, is not"
        ) from None
    return InProcessMode(f"{PREFIX}in_process", requirement, CLOSE_SECONDS, logger)


def endpoint_of(engine_id: str) -> str:
    """Where the processes of one engine meet. Makes the folder. Raises ValueError where others could be met there."""
    return _mode().endpoint(engine_id)


class InProcessCache:
    """What the scheduler's process has of the cache: all of it. Workers register with it as with a server."""

    def __init__(
        self, overrides: Mapping[str, Any], url: str, *, workers: int, block_tokens: int, number: int = 0
    ) -> None:
        """Opens it and serves it at `url`. `workers` of this machine map its memory, and it has as much for each of them;
        `block_tokens`: where blocks of all groups end together. `overrides`: keys of the configuration, over those of
        LMCACHE_CONFIG_FILE and LMCACHE_*. `number`: which of several engines of one configuration this is. Raises ValueError
        that says what is wrong, and what to do."""
        mode = _mode()
        self.config = mode.configuration(overrides, taken=(*_CONNECTOR_SETTINGS, *_BLENDING, "blend_special_str"))
        if self.config.chunk_size % block_tokens:
            raise ValueError(
                f"{mode.option}: 'chunk_size' is {self.config.chunk_size}, which is not a multiple of vLLM's blocks "
                f"of {block_tokens}; change it, or vLLM's --block-size"
            )
        self._served = mode.open(self.config, url, workers=workers, number=number)
        if self.config.asks_memory_alone():
            logger.warning("'retrieve_locations' has no effect: lookups ask all tiers")

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
        """Write what is on its way to other tiers, as far as there is time, and give everything back. May be called again."""
        self._served.close()
