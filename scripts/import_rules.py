"""Checks which package may import which (docs/internals/architecture.md, "Layers"), for whatever folders there are:
`python -m scripts.import_rules`.  Ends with code 1 where a rule is broken."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from importlinter.cli import EXIT_STATUS_ERROR, lint_imports

ROOT: Final = Path(__file__).parents[1]
LAYERS: Final = (
    "app",
    "server | builtin",
    "storage",
    "controllers",
    "l1 | jobs | events",
    "contracts",
    "kernels",
    "model",
)
"""Of core, the highest first; those in one line may not import each other."""
INSIDERS: Final = ("lmcache_devkit", "lmcache_tools")
"""What builds servers and looks into them."""
WITHOUT_CORE: Final = (
    "libs/client",
    "libs/blend_index",
    "libs/kv_layout",
    "libs/kv_identity",
    "libs/native",
    "engines/*",
)
"""But for engines that require core: the cache is in their own process."""
IN_PROCESS: Final = [
    f"lmcache_{engine}.in_process -> {each}"
    for engine, modules in {
        "sglang": ("lmcache_engine.config_keys", "lmcache_engine.in_process", "lmcache_engine"),
        "vllm": ("lmcache_engine.in_process", "lmcache_engine"),
    }.items()
    for each in modules
]
"""Where an extra is installed, and a user asks for it."""
FOREIGN: Final = ("litestar", "uvicorn", "rich", "shtab", "pytest", "hypothesis")
"""What core alone does not install."""
ASSEMBLE: Final = ("app", "contracts")
"""Packages of core that may call hooks, or say what they are."""

Contract = Mapping[str, str | Sequence[str]]


def packages(*patterns: str, but_for: str | None = None) -> list[str]:
    """The import packages of the distributions whose folders match, without those whose pyproject.toml says `but_for`."""
    files = (file for pattern in patterns for file in ROOT.glob(f"{pattern}/pyproject.toml"))
    folders = (file.parent for file in files if but_for is None or but_for not in file.read_text())
    return sorted(file.parent.name for folder in folders for file in folder.glob("src/*/__init__.py"))


def contracts() -> Iterable[Contract]:
    parts = sorted(file.parent.name for file in ROOT.glob("core/src/lmcache_core/*/__init__.py"))
    yield {
        "name": "layers of core: a module imports only from lower ones",
        "type": "layers",
        "layers": [" | ".join(f"lmcache_core.{each}" for each in layer.split(" | ")) for layer in LAYERS],
    }
    yield {
        "name": "plugins and libraries use the public API of core only",
        "type": "forbidden",
        "source_modules": [each for each in packages("libs/*", "plugins/*", "engines/*") if each not in INSIDERS],
        "forbidden_modules": [f"lmcache_core.{part}" for part in parts],
        "allow_indirect_imports": "true",
    }
    yield {
        "name": "no plugin imports another; what they share is in libs",
        "type": "independence",
        "modules": packages("plugins/*", "engines/*"),
        "ignore_imports": IN_PROCESS,
    }
    yield {
        "name": "what an engine's environment has does not import the server",
        "type": "forbidden",
        "source_modules": packages(*WITHOUT_CORE, but_for='\n  "lmcache-core'),
        "forbidden_modules": ["lmcache_core", "litestar", "uvicorn", "rich", "pydantic", "pluggy", "stevedore"],
        "ignore_imports": IN_PROCESS,
    }
    yield {
        "name": "core imports no plugin, no engine, no web framework and nothing of terminals or tests",
        "type": "forbidden",
        "source_modules": ["lmcache_core"],
        "forbidden_modules": [*packages("plugins/*", "engines/*"), "lmcache_http", "lmcache_l2_adapter", *FOREIGN],
    }
    yield {
        "name": "libraries import no plugin and no engine",
        "type": "forbidden",
        "source_modules": packages("libs/*"),
        "forbidden_modules": packages("plugins/*", "engines/*"),
    }
    yield {
        "name": "the library of names knows no engine",
        "type": "forbidden",
        "source_modules": packages("libs/kv_identity"),
        "forbidden_modules": ["lmcache_kv_layout", "lmcache_vllm", "vllm", "torch"],
    }
    yield {
        "name": "hooks assemble: nothing that works on requests can call one",
        "type": "forbidden",
        "source_modules": [f"lmcache_core.{part}" for part in parts if part not in ASSEMBLE],
        "forbidden_modules": ["pluggy", "stevedore"],
        "allow_indirect_imports": "true",
    }


def configuration() -> str:
    """For import-linter, in its own form."""
    lines = ["[importlinter]", "include_external_packages = true", "root_packages ="]
    lines += [f"    {each}" for each in ["lmcache_core", *packages("libs/*", "plugins/*", "engines/*")]]
    for number, contract in enumerate(contracts()):
        lines.append(f"[importlinter:contract:{number}]")
        for key, value in contract.items():
            lines.append(f"{key} = {value}" if isinstance(value, str) else f"{key} =")
            lines += [] if isinstance(value, str) else [f"    {each}" for each in value]
    return "\n".join(lines) + "\n"


def main() -> int:
    sys.path[:0] = [str(folder) for pattern in ("core/src", "*/*/src") for folder in ROOT.glob(pattern)]
    with tempfile.NamedTemporaryFile("w", suffix=".ini") as file:
        file.write(configuration())
        file.flush()
        status = lint_imports(config_filename=file.name, cache_dir=str(ROOT / ".import_linter_cache"))
    return int(status == EXIT_STATUS_ERROR)


if __name__ == "__main__":
    sys.exit(main())
