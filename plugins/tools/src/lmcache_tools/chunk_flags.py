"""Chunks on a command line: which model and tenant, and a file with the prompt or the chunk hashes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from lmcache_client.errors import ConfigError

FILE_BYTES_MAX: Final = 16 << 20


def add_chunk_flags(parser: argparse.ArgumentParser) -> None:
    """Which chunks."""
    section = parser.add_argument_group("chunks")
    section.add_argument("--model", required=True, metavar="NAME", help="the model's name, as its engines give it")
    section.add_argument("--world-size", type=int, default=1, metavar="N", help="workers that share it (default: 1)")
    section.add_argument("--salt", default="", help="the tenant's cache salt (default: the empty one)")
    which = section.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--tokens",
        metavar="FILE",
        help="token ids of a prompt: a JSON list, or numbers between white space; - is stdin",
    )
    which.add_argument("--hashes", metavar="FILE", help="chunk hashes in hex digits, in the same way")


def selection_of(given: argparse.Namespace) -> dict[str, Any]:
    """The fields of a request, by the flags of `add_chunk_flags`.  Raises ConfigError."""
    fields: dict[str, Any] = {"model_name": given.model, "world_size": given.world_size, "cache_salt": given.salt}
    if given.hashes is not None:
        return {**fields, "chunk_hashes": [str(each) for each in _items("--hashes", given.hashes)]}
    items = _items("--tokens", given.tokens)
    try:
        return {**fields, "token_ids": [int(each) for each in items]}
    except (TypeError, ValueError):
        raise ConfigError(f"--tokens {given.tokens}: expected token ids, which are numbers") from None


def _items(flag: str, path: str) -> list[Any]:
    try:
        text = sys.stdin.read(FILE_BYTES_MAX + 1) if path == "-" else _read(path)
    except OSError as error:
        raise ConfigError(f"{flag} {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{flag} {path}: is not text") from None
    if len(text) > FILE_BYTES_MAX:
        raise ConfigError(f"{flag} {path}: more than {FILE_BYTES_MAX} characters")
    if not text.lstrip().startswith("["):
        return text.split()
    try:
        items = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag} {path}: not JSON: {error}") from None
    if not isinstance(items, list):
        raise ConfigError(f"{flag} {path}: expected a list")
    return items


def _read(path: str) -> str:
    with Path(path).open(encoding="utf-8") as file:
        return file.read(FILE_BYTES_MAX + 1)
