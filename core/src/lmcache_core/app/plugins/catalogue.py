"""What the project's own plugins offer, installed or not, so that a name that is missing is answered with a remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import requires
from pathlib import Path
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_FILE: Final = Path(__file__).with_name("catalogue.json")
"""Written when core's wheel is built."""
_GENERATOR: Final = Path(__file__).parents[4] / "catalogue.py"
"""In a checkout, `core/catalogue.py`."""


class KnownSetting(NamedTuple):
    flag: str
    """Without its dashes."""
    plugin: str
    distribution: str
    is_switch: bool
    """Its flag takes no value."""


class Catalogue(NamedTuple):
    plugins: Mapping[str, str]
    """Distribution by the name of the plugin."""
    offers: Mapping[str, str]
    """Distribution by "kind:name"."""
    operations: Mapping[str, str]
    """The request module that answers an operation, as "kind:name"."""
    settings: Mapping[str, KnownSetting]

    def offers_of(self, kind: str) -> dict[str, str]:
        """Distribution by name, for the offers of one kind."""
        return {name: owner for key, owner in self.offers.items() for of, _, name in [key.partition(":")] if of == kind}

    def setting_of_flag(self, flag: str) -> str | None:
        """The name of the setting that `--flag` or `--no-flag` gives."""
        word = flag.removeprefix("--")
        names = {each.flag: name for name, each in self.settings.items()}
        return names.get(word) or names.get(word.removeprefix("no-"))


@cache
def catalogue() -> Catalogue:
    """Empty where core's wheel was built without the plugins."""
    if _GENERATOR.is_file() and (_GENERATOR.parent / "hatch_build.py").is_file():
        import runpy  # here, because a listing does not look for names that are missing

        said = runpy.run_path(str(_GENERATOR))["read_catalogue"]()
    elif _FILE.is_file():
        said = json.loads(_FILE.read_text(encoding="utf-8"))
    else:
        return Catalogue({}, {}, {}, {})
    settings = {name: KnownSetting(**each) for name, each in said["settings"].items()}
    return Catalogue(said["plugins"], said["offers"], said["operations"], settings)


def not_installed(plugins: Iterable[str], required: Sequence[str] | None = None) -> str:
    """One line about the plugins of `lmcache-core[standard]` that are not installed, and how to get them; empty where all
    are.  `plugins`: the distributions of the installed plugins; `required`: the requirements of lmcache-core, as its metadata
    has them by default."""
    if required is None:
        required = requires("lmcache-core") or ()
    standard = [line for line in required if line.partition(";")[2].replace("'", '"').endswith('extra == "standard"')]
    names = {name[0] for line in standard if "platform_machine" not in line and (name := _NAME.match(line))}
    missing = sorted(names - set(plugins))
    if not missing:
        return ""
    return (
        f"Not installed: {', '.join(missing)}. HTTP API, metrics, operator commands, policies and files come with "
        "`pip install 'lmcache-core[standard]'`"
    )
