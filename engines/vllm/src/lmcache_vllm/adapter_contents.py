"""What a LoRA adapter is by content, as the engine has loaded it."""

from __future__ import annotations

import logging
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final, NamedTuple

from lmcache_kv_identity import adapter_fingerprint, stamp, weights_files
from lmcache_vllm.model_weights import local_place

logger = logging.getLogger(__name__)

ADAPTERS_MAX: Final = 4096
"""Remembered, those that were used last."""


class AdapterContent(NamedTuple):
    """Of one request's adapter."""

    fingerprint: str = ""
    skip_reason: str = ""
    """Why that is not known, in a word; empty: it is."""


class _Known(NamedTuple):
    fingerprint: str | None
    files: tuple[Path, ...]
    stamp: tuple[tuple[int, ...], ...]


class AdapterContents:
    """Reads an adapter's files when its first request comes: a few milliseconds, on vLLM's thread. Afterwards it looks whether
    they are still the same: what the workers have loaded is not known any more once they are others. vLLM's number of an
    adapter is a new one whenever it is loaded anew. One thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, str], _Known] = OrderedDict()

    def of(self, lora: Any) -> AdapterContent:
        """Of a vLLM LoRARequest."""
        if getattr(lora, "load_inplace", False):
            return AdapterContent(skip_reason="adapter_in_place")  # other weights under the same number
        load = (int(lora.lora_int_id), str(lora.lora_path))
        known = self._known.get(load)
        if known is None:
            known = self._known[load] = self._read(lora)
            if len(self._known) > ADAPTERS_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(load)
        if known.fingerprint is None:
            return AdapterContent(skip_reason="adapter_unknown")
        return (
            AdapterContent(known.fingerprint) if _is_unchanged(known) else AdapterContent(skip_reason="adapter_changed")
        )

    def _read(self, lora: Any) -> _Known:
        place = local_place(str(Path(lora.lora_path).expanduser()), None, None)
        fingerprint: str | None = None
        files: list[Path] = []
        before: tuple[tuple[int, ...], ...] = ()
        try:
            if place is not None:
                files = [*weights_files(place), *place.glob("adapter_config.json")]
                before = stamp(files)
                fingerprint = adapter_fingerprint(place)
        except OSError as error:
            logger.warning("adapter could not be read name=%s error=%s", lora.lora_name, error)
        if fingerprint is None:
            logger.warning(
                "requests with the adapter %s are not cached: it has no files of weights at %s",
                lora.lora_name,
                lora.lora_path,
            )
        return _Known(fingerprint, tuple(files), before)


def _is_unchanged(known: _Known) -> bool:
    try:
        return stamp(known.files) == known.stamp
    except OSError:
        return False
