"""Where vLLM has weights from, and what they are by content."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Final

from lmcache_kv_identity import FORMATS, Fact, weights_fingerprint

logger = logging.getLogger(__name__)

_PICKLED: Final = ((".pt", ".bin"),)
_LOADED_BY: Final = {"pt": _PICKLED, "npcache": _PICKLED}
"""What a load format loads, where that is not the best format there is."""


def weights_facts(model: Any, load_config: Any) -> dict[str, Fact]:
    """Of one model. Weights that are not on this machine's disks as files are known by where they come from."""
    load_format, asked = str(getattr(load_config, "load_format", "auto")), getattr(model, "revision", None)
    if load_format == "dummy":
        return {"random": int(model.seed), "revision": _commit(None, asked)}
    source = str(getattr(model, "model_weights", "") or model.model)
    place = local_place(source, asked, getattr(load_config, "download_dir", None))
    revision = _commit(place, asked)
    try:
        content = None if place is None else weights_fingerprint(place, _LOADED_BY.get(load_format, FORMATS))
    except OSError as error:
        logger.warning("the weights of %s could not be read error=%s", source, error)
        content = None
    if content is not None:
        return {"content": content, "revision": revision}
    logger.warning(
        "no files of weights were found for %s: engines share its KV cache by this name and the revision; when its weights "
        "change, change --served-model-name",
        source,
    )
    return {"source": source, "revision": revision}


def _commit(place: Path | None, revision: Any) -> str | None:
    """The commit that the files are of, wherever that is known: from the cache folder of the hub, as engines without a
    network have it, or as vLLM has found it out. Otherwise the revision that was asked for."""
    if place is not None and place.resolve().parent.name == "snapshots":
        return place.resolve().name
    return None if revision is None else str(getattr(revision, "resolved", None) or revision)


def local_place(source: str, revision: Any, cache_folder: str | None) -> Path | None:
    """The folder or the file that `source` is on this machine, without asking any other. None: it is not there."""
    if Path(source).exists():
        return Path(source)
    try:
        from huggingface_hub import snapshot_download  # vLLM brings it; an engine of local files works without

        return Path(snapshot_download(source, revision=revision, cache_dir=cache_folder, local_files_only=True))
    except (ImportError, OSError, ValueError):  # also: not the name of a repository
        return None
