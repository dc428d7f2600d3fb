"""The name under which an engine's pages are stored: it says everything that decides their bytes."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmcache_kv_identity import Fact, adapter_fingerprint, engine_name, weights_fingerprint

logger = logging.getLogger(__name__)

_ARGUMENTS = (
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "json_model_override_args",
    "context_length",
    "load_format",
    "model_impl",
    "modelopt_quant",
    "rl_quant_profile",
)


def model_name(server_args: Any, kv_dtype: str, shard: tuple[int, ...]) -> str:
    """Of one rank.  `shard`: what tells the ranks of an engine apart; each has pages of its own.  Reads the weights' samples
    from disk.  Raises OSError for a file of scales that cannot be read."""
    path, revision = str(server_args.model_path), getattr(server_args, "revision", None)
    place = _local(path, revision)
    config = place / "config.json" if place is not None else None
    facts: dict[str, Fact] = {
        "engine": "sglang",
        "weights": _weights(path, place, revision),
        "config": json.loads(config.read_text()) if config is not None and config.is_file() else None,
        "arguments": {name: _plain(getattr(server_args, name, None)) for name in _ARGUMENTS},
        "kv": kv_dtype,
        "shard": list(shard),
    }
    # Adapters that are loaded later have an id of their own in the hashes; those of the command line that of name and path.
    if adapters := _adapters(getattr(server_args, "lora_paths", None)):
        facts["adapters"] = {name: _adapter(name, place) for name, place in adapters.items()}
    if scales := getattr(server_args, "quantization_param_path", None):
        facts["kv_scales"] = hashlib.sha256(Path(scales).read_bytes()).hexdigest()
    return engine_name(str(getattr(server_args, "served_model_name", None) or path), facts)


def _weights(path: str, place: Path | None, revision: Any) -> Fact:
    try:
        content = None if place is None else weights_fingerprint(place)
    except OSError as error:
        logger.warning("the weights of %s could not be read error=%s", path, error)
        content = None
    if content is not None:
        return content
    logger.warning("no files of weights were found for %s: engines share by this name and the revision", path)
    return [path, _plain(revision)]


def _adapters(given: Any) -> dict[str, str]:
    """Paths by name: `--lora-paths` as SGLang takes it, or as it has read it."""
    if isinstance(given, Mapping):
        return {str(name): str(path) for name, path in given.items()}
    found: dict[str, str] = {}
    for each in given or ():
        if isinstance(each, str):
            name, is_named, path = each.partition("=")
            found[name] = path if is_named else name
        elif isinstance(each, Mapping):
            found[str(each["lora_name"])] = str(each["lora_path"])
        else:
            found[str(each.lora_name)] = str(each.lora_path)
    return found


def _adapter(name: str, path: str) -> Fact:
    place = _local(path, None)
    try:
        content = None if place is None else adapter_fingerprint(place)
    except OSError as error:
        logger.warning("the adapter %s could not be read error=%s", name, error)
        content = None
    if content is None:
        logger.warning("no files of weights were found for the adapter %s: engines share by its path", name)
    return content or path


def _local(path: str, revision: Any) -> Path | None:
    if Path(path).exists():
        return Path(path)
    try:
        from huggingface_hub import snapshot_download  # SGLang brings it

        return Path(snapshot_download(path, revision=revision, local_files_only=True))
    except (ImportError, OSError, ValueError):
        return None


def _plain(value: Any) -> str | None:
    return None if value is None else str(value)
