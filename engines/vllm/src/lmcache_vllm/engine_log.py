"""The connector's log messages, in vLLM's log."""

from __future__ import annotations

import logging


def log_where_vllm_does() -> None:
    """vLLM sets up its own logger alone, so that others' lines would be lost or bare. May be called again."""
    own, engine = logging.getLogger(__package__), logging.getLogger("vllm")
    for handler in engine.handlers:
        if handler not in own.handlers:
            own.addHandler(handler)
    if engine.handlers:
        own.setLevel(engine.getEffectiveLevel())
        own.propagate = False
