"""Fingerprints of weights on disk, by content: the same on every node and under every path.

Small checkpoints are read as a whole. Of others it is the sizes of all files, the headers of safetensors files (names, types
and shapes of all tensors), and bytes of every tensor, about a mebibyte in all, so that hundreds of gibibytes take
milliseconds. Training, merging and quantizing change tensors as a whole and are seen. An edit of a few rows of a large
tensor may be missed: such a checkpoint needs a name of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3

FORMATS: Final = ((".safetensors",), (".bin", ".pt", ".pth"), (".gguf",))
"""File endings, best first: of a folder that has several formats the first one is loaded, and counts."""
WHOLE_BYTES: Final = 16 << 20
"""Checkpoints up to this size are read as a whole."""
_DOMAIN: Final = b"lmcache-weights-1"
_SAMPLES: Final = 4096
"""Places in all of a checkpoint."""
_SAMPLE_BYTES: Final = 256
_TENSOR_SAMPLES_MAX: Final = 16
_EDGE_BYTES: Final = 256 << 10
"""Of the beginning and the end of files without a header that is understood: a zip archive (`.bin`) ends with the
checksums of all of its tensors, a gguf file begins with their names."""
_HEADER_BYTES_MAX: Final = 100 << 20
"""Longest header that the safetensors format allows."""
_PARSED_BYTES_MAX: Final = 4 << 20
"""Headers of a checkpoint are parsed up to this size in all; beyond it samples lie at even distances instead."""
_THREADS: Final = 8
_NOT_WEIGHTS: Final = frozenset({"optimizer.bin", "optimizer.pt", "scaler.pt", "scheduler.pt", "training_args.bin"})
_ADAPTER_CONFIG: Final = "adapter_config.json"
_NOT_OF_THE_ADAPTER: Final = frozenset(
    {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision"}
)
"""Entries of an adapter's configuration that do not change what it computes; some differ from node to node."""


class _Tensor(msgspec.Struct):
    data_offsets: tuple[int, int] = (0, 0)


_decode_header: Final = msgspec.json.Decoder(dict[str, _Tensor]).decode


def weights_fingerprint(path: str | os.PathLike[str], formats: Sequence[Sequence[str]] = FORMATS) -> str | None:
    """32 hex digits of the weights in a folder, or of one file. None: there are none in any of `formats`. Raises OSError for
    files that cannot be read. Takes a few milliseconds; a hundred files that no memory holds take some tens."""
    files = weights_files(path, formats)
    return _digest(files).hex() if files else None


def adapter_fingerprint(folder: str | os.PathLike[str]) -> str | None:
    """32 hex digits of a LoRA adapter: its weights, and what its configuration says about their use. None: it has no weights.
    Raises OSError for files that cannot be read."""
    files = weights_files(folder)
    if not files:
        return None
    try:
        config = (Path(folder) / _ADAPTER_CONFIG).read_bytes()
    except FileNotFoundError:
        config = b""
    return blake3(_DOMAIN + b"adapter" + _digest(files) + _adapter_config(config)).hexdigest(16)


def weights_files(path: str | os.PathLike[str], formats: Sequence[Sequence[str]] = FORMATS) -> list[Path]:
    """The files that a fingerprint is about, in the order of their names. Empty: none, or no such folder."""
    path = Path(path)
    if path.is_file():
        return [path]
    try:
        names = sorted(name for name in os.listdir(path) if name not in _NOT_WEIGHTS)
    except (FileNotFoundError, NotADirectoryError):
        return []
    for endings in formats:
        found = [path / name for name in names if name.endswith(tuple(endings))]
        if files := [file for file in found if file.is_file()]:
            return files
    return []


def _digest(files: Sequence[Path]) -> bytes:
    """The names of files do not count; their order does."""
    sizes = [file.stat().st_size for file in files]
    whole = sum(sizes) <= WHOLE_BYTES
    with ThreadPoolExecutor(min(_THREADS, len(files))) as pool:
        headers = list(pool.map(_header, files, sizes))
        parsed = sum(map(len, headers)) <= _PARSED_BYTES_MAX
        tensors = [_tensors(header, size) if parsed else [] for header, size in zip(headers, sizes, strict=True)]
        count = sum(map(len, tensors))
        share = [max(1, _SAMPLES // len(files) if not count else _SAMPLES * len(some) // count) for some in tensors]
        digests = list(pool.map(_file_digest, files, sizes, headers, tensors, share, [whole] * len(files)))
    return blake3(_DOMAIN + len(files).to_bytes(8, "little") + b"".join(digests)).digest(16)


def _header(file: Path, size: int) -> bytes:
    """Of a safetensors file; empty for any other."""
    if file.suffix != ".safetensors" or size < 8:
        return b""
    with open(file, "rb", buffering=0) as source:
        length = int.from_bytes(os.pread(source.fileno(), 8, 0), "little")
        return os.pread(source.fileno(), length, 8) if length <= min(size - 8, _HEADER_BYTES_MAX) else b""


def _tensors(header: bytes, size: int) -> list[range]:
    """Where the tensors of a safetensors file lie in it. Empty: the header is not one."""
    start = 8 + len(header)
    try:
        offsets = [tensor.data_offsets for tensor in _decode_header(header).values()] if header else []
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
    return [range(start + begin, start + end) for begin, end in offsets if 0 <= begin < end <= size - start]


def _file_digest(file: Path, size: int, header: bytes, tensors: Sequence[range], samples: int, whole: bool) -> bytes:
    digest = blake3(size.to_bytes(8, "little"))
    if whole:
        digest.update(file.read_bytes())
        return digest.digest()
    digest.update(header)
    data = range(8 + len(header), size)
    with open(file, "rb", buffering=0) as source:
        if not header:
            digest.update(os.pread(source.fileno(), _EDGE_BYTES, 0))
            digest.update(os.pread(source.fileno(), _EDGE_BYTES, max(0, size - _EDGE_BYTES)))
        for position in _positions(tensors or [data], samples):
            digest.update(os.pread(source.fileno(), _SAMPLE_BYTES, position))
    return digest.digest()


def _positions(extents: Sequence[range], samples: int) -> Iterator[int]:
    """Where to sample: every extent the same number of times, at even distances. Where there are more extents than samples,
    every so many of them."""
    each = min(_TENSOR_SAMPLES_MAX if len(extents) > 1 else samples, max(1, samples // len(extents)))
    step = max(1, -(-len(extents) // max(1, samples)))
    for extent in extents[::step]:
        for number in range(each):
            yield extent.start + (2 * number + 1) * len(extent) // (2 * each)


def _adapter_config(config: bytes) -> bytes:
    try:
        entries = msgspec.json.decode(config, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return config
    kept = {key: msgspec.json.decode(value) for key, value in entries.items() if key not in _NOT_OF_THE_ADAPTER}
    return msgspec.json.encode(kept, order="deterministic")


def stamp(files: Iterable[Path]) -> tuple[tuple[int, ...], ...]:
    """What changes when one of these files is written or replaced. Raises OSError for one that is gone."""
    found = [file.stat() for file in files]
    return tuple((each.st_dev, each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
