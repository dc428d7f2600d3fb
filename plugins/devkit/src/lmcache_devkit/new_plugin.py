"""Writes a plugin to start from: a distribution that works, out of the template beside this file."""

from __future__ import annotations

import json
import keyword
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

import lmcache_core
from lmcache_client.errors import ConfigError, ResourceError
from lmcache_core.app.console.core_commands import CORE_COMMANDS
from lmcache_core.app.plugins.catalogue import catalogue
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.plugins.offer_kind import OfferKind
from lmcache_http.admin_api.paths import ADMIN_PATHS

TEMPLATE: Final = Path(__file__).with_name("template")
_SUFFIX: Final = ".template"
_PACKAGE: Final = "package"
"""The folder of the template that gets the name of the new package."""
_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_NAME_CHARACTERS: Final = 40
_SERVER: Final = "lmcache server --l1-size-gb 4"
KINDS: Final = (
    *OfferKind,
    OfferKind("l2_eviction"),
    OfferKind("coordinator_view"),
    OfferKind("coordinator_state"),
)
"""Core's, and those of the libraries that lmcache-devkit has a suite for."""
_EXAMPLES: Final = {
    OfferKind.L2_ADAPTER: _SERVER + ' --l2-adapter \'{"type": "$name", "base_path": "/tmp/lmcache"}\'',
    OfferKind.SERDE: _SERVER + ' --l2-adapter \'{"type": "memory", "serde": "$name"}\'',
    OfferKind.EVICTION_POLICY: f"{_SERVER} --eviction-policy $name",
    OfferKind.STORE_POLICY: _SERVER + ' --l2-adapter \'{"type": "memory"}\' --l2-store-policy $name',
    OfferKind.PREFETCH_POLICY: _SERVER + ' --l2-adapter \'{"type": "memory"}\' --l2-prefetch-policy $name',
    OfferKind.REQUEST_MODULE: f"{_SERVER} --engine-type $name",
    OfferKind.SUBSCRIBER: _SERVER + " --offer-settings '{\"subscriber:$name\": {}}'",
    OfferKind.HTTP_ROUTES: _SERVER + "    # and then: curl http://127.0.0.1:8080/$name",
    OfferKind.L1_MEMORY: _SERVER + " --offer-settings '{\"l1_memory:$name\": {}}'",
    OfferKind.TRANSFER_CHANNEL: "lmcache server --coordinator-url http://127.0.0.1:9300 "
    "--p2p-advertise-url tcp://127.0.0.1:7600 --p2p-transfer-engine $name",
    OfferKind.SERVICE: _SERVER + " --offer-settings '{\"service:$name\": {}}'",
    OfferKind.COMMAND: "lmcache $name",
    OfferKind("l2_eviction"): _SERVER
    + ' --l2-adapter \'{"type": "memory", "max_size_gb": 1, "eviction": {"type": "$name", "eviction_policy": "LRU"}}\'',
    OfferKind("coordinator_view"): "lmcache coordinator    # and then: curl http://127.0.0.1:9300/$name",
    OfferKind("coordinator_state"): "lmcache coordinator --state $name:/var/lib/lmcache-coordinator",
}
_LIBRARIES: Final = {
    OfferKind.L2_ADAPTER: "lmcache-l2-adapter",
    OfferKind("coordinator_view"): "lmcache-fleet",
    OfferKind("coordinator_state"): "lmcache-fleet",
}
"""What a kind is written with, beside core."""
_SETTINGS: Final = {
    OfferKind.L2_ADAPTER: {"base_path": "/tmp/lmcache"},
    OfferKind("l2_eviction"): {"eviction_policy": "LRU"},
    OfferKind("coordinator_state"): {"address": "/tmp/lmcache"},
}
"""Those that must be given."""


@dataclass(frozen=True, slots=True)
class NewPlugin:
    """What was written, and how to check it."""

    folder: Path
    distribution: str
    check: str


def write_plugin(kind: OfferKind, name: str, into: Path) -> NewPlugin:
    """Write the distribution into a folder of its own below `into`, all of it or nothing.

    Raises ConfigError for a name that cannot be one, and ResourceError where the folder cannot be made."""
    _check_name(kind, name)
    distribution = f"lmcache-{kind.prefix}-{name}".replace("_", "-")
    folder = into / distribution
    words = _words(kind, name, distribution)
    try:
        if folder.exists():
            raise ResourceError(f"{folder} is there already; remove it, or choose another name or --into")
        with tempfile.TemporaryDirectory(prefix=".lmcache-new-", dir=into) as half:
            made = Path(half) / distribution
            for part in ("common", kind):
                _copy(TEMPLATE / part, made, words)
            made.rename(folder)
    except OSError as error:
        raise ResourceError(f"--into {into}: cannot be written: {error.strerror}") from None
    return NewPlugin(folder, distribution, words["check"])


def _check_name(kind: OfferKind, name: str) -> None:
    if not _NAME.fullmatch(name) or len(name) > _NAME_CHARACTERS or keyword.iskeyword(name):
        raise ConfigError(
            f"'{name[:80]}' cannot be a name: small letters, digits and single underscores, beginning with a letter, "
            f"at most {_NAME_CHARACTERS}, and no word of Python; such as acme or acme_store"
        )
    if distribution := catalogue().offers.get(f"{kind}:{name}"):
        raise ConfigError(f"{kind.label} '{name}' is that of {distribution}; choose another name")
    core = load_plugins(safe_mode=True)
    taken = [
        *(offer.name for offer in core.offers(kind)),
        *(CORE_COMMANDS if kind is OfferKind.COMMAND else ()),
        *((path.removeprefix("/") for path in ADMIN_PATHS) if kind is OfferKind.HTTP_ROUTES else ()),
        "builtin",
    ]
    if name in taken:
        raise ConfigError(f"{kind.label} '{name}' is that of lmcache-core; choose another name")


def _words(kind: OfferKind, name: str, distribution: str) -> Mapping[str, str]:
    major, minor, *_ = lmcache_core.__version__.split(".")
    settings = f" --settings '{json.dumps(_SETTINGS[kind])}'" if kind in _SETTINGS else ""
    core = f">={major}.{minor},<{major}.{int(minor) + 1}"
    library = _LIBRARIES.get(kind, "")
    return {
        "name": name,
        "plugin": f"{kind.prefix}_{name}",
        "Class": "".join(part.capitalize() for part in name.split("_")),
        "package": f"lmcache_{kind.prefix}_{name}",
        "distribution": distribution,
        "kind": kind,
        "label": kind.label,
        "core": core,
        "library": f', "{library}{core}"' if library else "",
        "testing": "lmcache-devkit[fleet]" if library == "lmcache-fleet" else "lmcache-devkit",
        "example": Template(_EXAMPLES[kind]).substitute(name=name),
        "check": f"lmcache {name}" if kind is OfferKind.COMMAND else f"lmcache plugins check {kind}:{name}{settings}",
    }


def _copy(source: Path, target: Path, words: Mapping[str, str]) -> None:
    """One folder of the template.  Raises OSError."""
    for path in sorted(source.rglob(f"*{_SUFFIX}")):
        parts = [words["package"] if part == _PACKAGE else part for part in path.relative_to(source).parts]
        file = target.joinpath(*parts).with_suffix("")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(Template(path.read_text("utf-8")).substitute(words), "utf-8")
