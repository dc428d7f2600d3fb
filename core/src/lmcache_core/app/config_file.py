"""Reads the `--config` file: YAML or TOML.  Imports no settings model, because plugins are chosen by it first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lmcache_client.errors import ConfigError


def read_config_file(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML or TOML file.  Raises ConfigError with its path and, where known, the line."""
    kind = path.suffix.lower()
    if kind not in (".yaml", ".yml", ".toml"):
        raise ConfigError(f"--config {path}: the name must end in .yaml, .yml or .toml")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"--config {path}: cannot be read: {reason}") from None
    values = _toml(path, text) if kind == ".toml" else _yaml(path, text)
    if values is None:
        return {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise ConfigError(f"--config {path}: expected keys and values, such as 'port: 5555'")
    if "config" in values:
        raise ConfigError(f"--config {path}: key 'config' makes no sense inside of the file; leave it out")
    return values


def _toml(path: Path, text: str) -> Any:
    import tomllib  # here, so that a server without a file does not pay for the parser

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config {path}: not TOML: {error}") from None


def _yaml(path: Path, text: str) -> Any:
    import yaml  # as above

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise ConfigError(f"--config {path}: {where}not YAML: {problem}") from None
