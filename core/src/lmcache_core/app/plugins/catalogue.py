"""What the project's own plugins offer, installed or not, so that a name that is missing is answered with a remedy."""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

_FILE: Final = Path(__file__).with_name("catalogue.json")
"""Written when core's wheel is built."""
_GENERATOR: Final = Path(__file__).parents[4] / "catalogue.py"
"""In a checkout, `core/catalogue.py`."""


class KnownSetting(NamedTuple):
    flag: str
    """Without its dashes."""
    plugin: str
    distribution: str


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
        said = runpy.run_path(str(_GENERATOR))["read_catalogue"]()
    elif _FILE.is_file():
        said = json.loads(_FILE.read_text(encoding="utf-8"))
    else:
        return Catalogue({}, {}, {}, {})
    settings = {name: KnownSetting(**each) for name, each in said["settings"].items()}
    return Catalogue(said["plugins"], said["offers"], said["operations"], settings)
