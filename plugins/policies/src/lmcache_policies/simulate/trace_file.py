"""Reads traces.  Three forms, distinguished by their first line, plain or compressed with gzip:

requests    one JSON object per line, as Mooncake publishes them:
            {"timestamp": 27000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
            milliseconds, and the ids of the prompt's blocks; lengths are not looked at; "salt" is optional
lookups     one JSON object per line, as servers log lookups, this one with --lookup-hash-log-dir:
            {"timestamp": 1711929600.5, "model_name": "m", "chunk_hashes": ["0x1f", "0x2e"]}
            seconds; "cache_salt" and "world_size" are optional, and chunks of another model, salt or size are others
blocks      one integer or word per line: a request for that block alone, one second after the last
"""

from __future__ import annotations

import gzip
import json
from array import array
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, cast

from lmcache_core import ConfigError, ResourceError
from lmcache_policies.simulate.trace import Trace, in_order_of_time

FORMS: Final = ("requests", "lookups", "blocks")
_GZIP: Final = b"\x1f\x8b"
_BATCH_BYTES: Final = 1 << 20
_EXPECTED: Final = {
    "requests": '{"timestamp": milliseconds, "hash_ids": [ids of blocks]}',
    "lookups": '{"timestamp": seconds, "chunk_hashes": [hashes of chunks]}',
}


def read_trace(path: str, form: str | None = None, max_requests: int | None = None) -> Trace:
    """Read a file, or the first requests of it.  `form` None: as its first line looks.

    Raises ConfigError with the file and line for a line that is not what is expected, ResourceError for a file that
    cannot be read."""
    try:
        with _opened(path) as file:
            form = form or _detected(path, file)
            reader = _BlockReader(path) if form == "blocks" else _RequestReader(path, form)
            trace = reader.read(file, max_requests)
    except (OSError, EOFError) as error:  # gzip tells a cut file by EOFError, a damaged one by BadGzipFile
        raise ResourceError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not trace.blocks:
        raise ConfigError(f"{path} names no block; expected one request or one block per line")
    return trace


def _opened(path: str) -> IO[bytes]:
    with Path(path).open("rb") as file:
        compressed = file.read(len(_GZIP)) == _GZIP
    # a GzipFile is an IO[bytes] in all but its declaration
    return cast(IO[bytes], gzip.open(path, "rb")) if compressed else Path(path).open("rb")


def _detected(path: str, file: IO[bytes]) -> str:
    head = file.read(4096)
    file.seek(0)
    if b"\0" in head:
        raise ConfigError(f"{path} is not text; expected JSON objects or words, one per line, plain or gzip")
    if not head.lstrip().startswith(b"{"):
        return "blocks"
    return "requests" if b'"hash_ids"' in head or b'"chunk_hashes"' not in head else "lookups"


class _Numbers(dict[Any, int]):
    """Numbers ids in the order in which they are first asked for; tables of several salts count together."""

    def __init__(self, counter: list[int]) -> None:
        super().__init__()
        self._counter = counter

    def __missing__(self, block_id: Any) -> int:
        number = self[block_id] = self._counter[0]
        self._counter[0] += 1
        return number


class _BlockReader:
    def __init__(self, path: str) -> None:
        self._path = path

    def read(self, file: IO[bytes], max_requests: int | None) -> Trace:
        counter = [0]
        numbers, blocks, line = _Numbers(counter), array("I"), 0
        while lines := file.readlines(_BATCH_BYTES):
            text = b"".join(lines)
            words = text.split()
            if words != list(map(bytes.strip, lines)) or b"," in text:
                self._check(lines, line)
            blocks.extend(map(numbers.__getitem__, words))
            line += len(lines)
            if max_requests and len(blocks) >= max_requests:
                del blocks[max_requests:]
                break
        distinct = max(blocks, default=-1) + 1
        count = len(blocks)
        return Trace(self._path, "blocks", blocks, range(count + 1), range(count), bytes(count), ("",), distinct)

    def _check(self, lines: list[bytes], before: int) -> None:
        for index, line in enumerate(lines):
            if len(line.split()) > 1 or b"," in line:
                raise ConfigError(
                    f"{self._path}:{before + index + 1}: expected one integer or word, "
                    f"got {_shown(line)}; --format requests reads JSON objects"
                )


class _Request(NamedTuple):
    milliseconds: float
    ids: list[Any]
    salt: str
    family: Any = None
    """What else tells blocks apart."""


class _RequestReader:
    def __init__(self, path: str, form: str) -> None:
        self._path, self._form = path, form
        self._parse = _lookup if form == "lookups" else _request
        self._counter = [0]
        self._salts: dict[str, int] = {}
        self._tables: dict[tuple[str, Any], _Numbers] = {}

    def read(self, file: IO[bytes], max_requests: int | None) -> Trace:
        blocks, starts = array("I"), array("Q", [0])
        seconds, salt_of = array("d"), array("I")
        for request in self._requests(file):
            blocks.extend(map(self._table(request).__getitem__, request.ids))
            starts.append(len(blocks))
            seconds.append(request.milliseconds / 1000)
            salt_of.append(self._salts.setdefault(request.salt, len(self._salts)))
            if len(seconds) == max_requests:
                break
        salts, distinct = tuple(self._salts) or ("",), self._counter[0]
        return in_order_of_time(Trace(self._path, self._form, blocks, starts, seconds, salt_of, salts, distinct))

    def _table(self, request: _Request) -> _Numbers:
        key = (request.salt, request.family)
        if (found := self._tables.get(key)) is None:
            found = self._tables[key] = _Numbers(self._counter)
        return found

    def _requests(self, file: IO[bytes]) -> Iterator[_Request]:
        for index, line in enumerate(file):
            if line.isspace():
                continue
            try:
                yield self._parse(json.loads(line))
            except (ValueError, RecursionError) as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
                what = f"not JSON ({error.msg})" if isinstance(error, json.JSONDecodeError) else str(error)
                raise ConfigError(
                    f"{self._path}:{index + 1}: {what}: {_shown(line)}; expected {_EXPECTED[self._form]}; "
                    "--format blocks reads one word per line"
                ) from None


def _request(given: Any) -> _Request:
    """Raises ValueError with what is wrong."""
    return _Request(*_checked(given, "hash_ids", "salt"))


def _lookup(given: Any) -> _Request:
    """Raises ValueError with what is wrong."""
    seconds, ids, salt = _checked(given, "chunk_hashes", "cache_salt")
    model, size = given.get("model_name", ""), given.get("world_size", 1)
    if not isinstance(model, str) or not isinstance(size, int):
        raise ValueError("'model_name' is not a string, or 'world_size' not an integer")
    return _Request(seconds * 1000, ids, salt, (model, size))


def _checked(given: Any, of_ids: str, of_salt: str) -> tuple[float, list[Any], str]:
    if not isinstance(given, dict):
        raise ValueError("not an object")
    timestamp, ids, salt = given.get("timestamp"), given.get(of_ids), given.get(of_salt, "")
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float) or not isfinite(timestamp):
        raise ValueError("'timestamp' is missing" if timestamp is None else "'timestamp' is not a number")
    if not isinstance(ids, list):
        raise ValueError(f"'{of_ids}' is missing" if ids is None else f"'{of_ids}' is not a list")
    if not {int, str}.issuperset(map(type, ids)):
        raise ValueError(f"'{of_ids}' holds something that is neither an integer nor a string")
    if len(set(ids)) < len(ids):
        raise ValueError(f"'{of_ids}' names a block twice, but an id names a block and all blocks before it")
    if not isinstance(salt, str) or len(salt) > 256:
        raise ValueError(f"'{of_salt}' is not a string of at most 256 characters")
    return timestamp, ids, salt


def _shown(line: bytes) -> str:
    text = line.decode(errors="replace").strip()
    return repr(text if len(text) <= 60 else text[:57] + "...")
