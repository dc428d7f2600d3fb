"""Where the connector enters vLLM: its name, by the entry point `vllm.general_plugins` in each process, and its log lines."""

from __future__ import annotations

import logging
from typing import Final

NAME: Final = "LMCacheNodeConnector"
"""What a user writes as `kv_connector`."""
_MODULE: Final = "lmcache_vllm.connector"

logger = logging.getLogger(__name__)


def register() -> None:
    """Make the connector known by its name. May be called again; with a vLLM that has no connectors of this kind it is
    a warning, so that engines which do not use the connector are not disturbed."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory  # vLLM may be another one
    except ImportError as error:
        logger.warning("%s is not available: this vLLM has no connector factory (%s)", NAME, error)
        return
    try:
        KVConnectorFactory.register_connector(NAME, _MODULE, NAME)
    except ValueError:
        known = KVConnectorFactory.get_connector_class_by_name(NAME)
        if known.__module__ != _MODULE:
            logger.warning("%s is not available: %s has taken its name", NAME, known.__module__)
    except (AttributeError, TypeError) as error:
        logger.warning("%s is not available: this vLLM registers connectors in another way (%s)", NAME, error)


def log_where_vllm_does() -> None:
    """vLLM sets up its own logger alone, so that others' lines would be lost or bare. May be called again."""
    own, engine = logging.getLogger(__package__), logging.getLogger("vllm")
    for handler in engine.handlers:
        if handler not in own.handlers:
            own.addHandler(handler)
    if engine.handlers:
        own.setLevel(engine.getEffectiveLevel())
        own.propagate = False
