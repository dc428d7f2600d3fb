"""Fingerprints of weights on disk, by content: the same on every node and under every path.

Small checkpoints are read as a whole. Of others it is the sizes of all files, the headers of safetensors files (names, types
and shapes of all tensors), and bytes of every tensor, about a mebibyte in all, so that hundreds of gibibytes take
milliseconds. Training, merging and quantizing change tensors as a whole and are seen. An edit of a few rows of a large
tensor may be missed: such a checkpoint needs a name of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

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
    if sum(sizes) <= WHOLE_BYTES:
        digests = [blake3(_size(size) + file.read_bytes()).digest() for file, size in zip(files, sizes, strict=True)]
    else:
        samples = _samples(files, sizes)
        for each in samples:  # a disk reads many places at once, and no thread waits for each
            each.announce()
        digests = [each.digest() for each in samples]
    return blake3(_DOMAIN + _size(len(files)) + b"".join(digests)).digest(16)


def _size(number: int) -> bytes:
    return number.to_bytes(8, "little")


class _Sample(NamedTuple):
    """What of a file is read."""

    file: Path
    size: int
    header: int
    """Bytes of the header of a safetensors file, its length field left out; 0 for any other."""
    positions: Sequence[int]

    @property
    def _runs(self) -> Sequence[tuple[int, int]]:
        """Places and lengths that are read in one piece."""
        if self.header:
            return [(8, self.header)]
        return [(0, _EDGE_BYTES), (max(0, self.size - _EDGE_BYTES), _EDGE_BYTES)]

    def announce(self) -> None:
        """Have the system read all of it, without waiting for it."""
        with open(self.file, "rb", buffering=0) as source:
            for position, length in [*self._runs, *((position, _SAMPLE_BYTES) for position in self.positions)]:
                os.posix_fadvise(source.fileno(), position, length, os.POSIX_FADV_WILLNEED)

    def digest(self) -> bytes:
        digest = blake3(_size(self.size))
        with open(self.file, "rb", buffering=0) as source:
            number = source.fileno()
            for position, length in self._runs:
                digest.update(os.pread(number, length, position))
            digest.update(b"".join([os.pread(number, _SAMPLE_BYTES, position) for position in self.positions]))
        return digest.digest()


def _samples(files: Sequence[Path], sizes: Sequence[int]) -> list[_Sample]:
    headers = [_header_bytes(file, size) for file, size in zip(files, sizes, strict=True)]
    parsed = sum(headers) <= _PARSED_BYTES_MAX
    described = list(zip(files, sizes, headers, strict=True))
    tensors = [_tensors(_header(file, header), size) if parsed else [] for file, size, header in described]
    count = sum(map(len, tensors))
    samples = []
    for (file, size, header), some in zip(described, tensors, strict=True):
        share = max(1, _SAMPLES * len(some) // count if count else _SAMPLES // len(files))
        samples.append(_Sample(file, size, header, list(_positions(some or [range(8 + header, size)], share))))
    return samples


def _header_bytes(file: Path, size: int) -> int:
    if file.suffix != ".safetensors" or size < 8:
        return 0
    with open(file, "rb", buffering=0) as source:
        length = int.from_bytes(source.read(8), "little")
    return length if length <= min(size - 8, _HEADER_BYTES_MAX) else 0


def _header(file: Path, length: int) -> bytes:
    with open(file, "rb", buffering=0) as source:
        return os.pread(source.fileno(), length, 8)


def _tensors(header: bytes, size: int) -> list[range]:
    """Where the tensors of a safetensors file lie in it. Empty: the header is not one."""
    start = 8 + len(header)
    try:
        offsets = [tensor.data_offsets for tensor in _decode_header(header).values()] if header else []
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
    return [range(start + begin, start + end) for begin, end in offsets if 0 <= begin < end <= size - start]


def _positions(extents: Sequence[range], samples: int) -> Iterator[int]:
    """Where to sample: every extent the same number of times, at even distances. Where there are more extents than samples,
    extents at a fixed distance."""
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
