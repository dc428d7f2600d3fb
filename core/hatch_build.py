"""Writes the catalogue of this project's plugins into core's wheel and source distribution."""

import json
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "lmcache_core/app/plugins/catalogue.json"


class CatalogueHook(BuildHookInterface):  # type: ignore[type-arg]
    """Without the plugins beside core (a wheel that is built from its source distribution) the file is that of the source
    distribution; an editable install needs none."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        here = Path(self.root)
        if version == "editable" or not (here.parent / "plugins").is_dir():
            return
        made = Path(self.directory) / "catalogue.json"
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(json.dumps(runpy.run_path(str(here / "catalogue.py"))["read_catalogue"](), indent=1))
        build_data["force_include"][str(made)] = f"src/{NAME}" if self.target_name == "sdist" else NAME
