"""Settings written the way a server takes them: as its command line, or as its `--config` file."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from lmcache_core.app.masking import MASK

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def as_flags(settings: Iterable[tuple[str, Any]], flags: Mapping[str, str]) -> list[str]:
    """The lines of a command for a shell, by name and JSON value; `flags` by name.  A value that is none is left out, as no
    flag says so."""
    parts = [part for name, value in settings if name in flags for part in _flags(flags[name], value)]
    return [" \\\n  ".join(["lmcache server", *parts])]


def as_toml(settings: Iterable[tuple[str, Any]]) -> list[str]:
    """One line for each; what is none is a comment, as TOML has no word for it."""
    return [
        f"# {name} is not set" if value is None else f"{name} = {toml_value(value)}"
        for name, value in settings
        if name != "config"  # a file cannot name itself
    ]


def hides_secrets(settings: Iterable[tuple[str, Any]]) -> list[str]:
    """The names of those in which a secret was hidden, so that they cannot be used as they are."""
    return [name for name, value in settings if MASK in json.dumps(value)]


def toml_value(value: Any) -> str:
    """A JSON value in TOML, on one line.  What is none inside of an object is left out."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = [f"{_key(str(key))} = {toml_value(each)}" for key, each in value.items() if each is not None]
        return f"{{ {', '.join(inner)} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml_value(each) for each in value if each is not None)}]"
    return repr(value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else toml_value(name)


def _flags(flag: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, bool):
        yield flag if value else f"--no-{flag.removeprefix('--')}"
        return
    for each in value if isinstance(value, list | tuple) else (value,):
        text = each if isinstance(each, str) else json.dumps(each)
        yield f"{flag} {shlex.quote(text)}" if not text.startswith("-") else f"{flag}={shlex.quote(text)}"
