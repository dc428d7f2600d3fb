"""Fingerprints of weights: by content, wherever it lies, in whatever format."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmcache_kv_identity import adapter_fingerprint, checkpoint, stamp, weights_files, weights_fingerprint

PINNED = {
    "whole": ["00e5d03bb6ffc717aee8c70f36448e59", "0677bd3142a58a37472c8067b65ae8d2"],
    "sampled": ["1082a5f60e147b8b125518e0cec97e9c", "cf8be1df85dc611ffdb3b93620927610"],
}


def safetensors(tensors: dict[str, bytes], dtype: str = "F32") -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, content in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": [len(content) // 4],
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + data


def tensors(seed: int, count: int = 40, size: int = 8000) -> dict[str, bytes]:
    return {f"layers.{number}.weight": random.Random(f"{seed}-{number}").randbytes(size) for number in range(count)}


def write(folder: Path, **files: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    return folder


@pytest.fixture(params=["whole", "sampled"])
def read_as(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small checkpoints are read as large ones are, too."""
    if request.param == "sampled":
        monkeypatch.setattr(checkpoint, "WHOLE_BYTES", 0)
    chosen: str = request.param
    return chosen


def test_one_content_has_one_fingerprint_wherever_it_lies(tmp_path: Path, read_as: str) -> None:
    one = write(tmp_path / "a", model__safetensors=safetensors(tensors(1)), config__json=b"{}")
    other = write(tmp_path / "b/c", other__safetensors=safetensors(tensors(1)))
    os.utime(other / "other.safetensors", (0, 0))
    (tmp_path / "link").symlink_to(one)
    found = {weights_fingerprint(path) for path in (one, str(other), tmp_path / "link", one / "model.safetensors")}
    assert len(found) == 1
    assert len(found.pop() or "") == 32


def test_the_fingerprint_is_that_of_other_releases(tmp_path: Path, read_as: str) -> None:
    """Chunks that were stored under another one would never be found again."""
    folder = write(tmp_path / "m", model__safetensors=safetensors(tensors(1)), other__safetensors=b"no header")
    other = write(tmp_path / "o", pytorch_model__bin=random.Random(1).randbytes(1 << 20))
    found = [weights_fingerprint(folder), weights_fingerprint(other)]
    assert found == PINNED[read_as]


def test_weights_that_were_trained_merged_or_cast_differ(tmp_path: Path, read_as: str) -> None:
    """One tensor of all suffices."""
    base = tensors(1)
    versions = {
        "base": safetensors(base),
        "trained": safetensors(tensors(2)),
        "one tensor": safetensors(base | {"layers.7.weight": tensors(2)["layers.7.weight"]}),
        "cast": safetensors(base, "I32"),
        "renamed": safetensors({name.replace("7", "x"): content for name, content in base.items()}),
        "longer": safetensors(base) + b"\0",
        "swapped": safetensors(dict(zip(base, reversed(base.values()), strict=True))),
    }
    found = {
        name: weights_fingerprint(write(tmp_path / name, model__safetensors=content))
        for name, content in versions.items()
    }
    assert len(set(found.values())) == len(versions), found


def test_every_tensor_is_looked_at_and_every_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "WHOLE_BYTES", 0)
    shards = [tensors(seed, count=30, size=1000) for seed in range(5)]
    names = [f"model-{number}__safetensors" for number in range(len(shards))]
    folder = write(tmp_path / "m", **{name: safetensors(shard) for name, shard in zip(names, shards, strict=True)})
    before = weights_fingerprint(folder)
    for name, shard in zip(names, shards, strict=True):
        for tensor, content in shard.items():
            write(folder, **{name: safetensors(shard | {tensor: bytes(len(content))})})
            assert weights_fingerprint(folder) != before, (name, tensor)
        write(folder, **{name: safetensors(shard)})
    assert weights_fingerprint(folder) == before


@settings(deadline=None)
@given(st.data())
def test_any_byte_of_a_small_checkpoint_counts(data: st.DataObject) -> None:
    content = safetensors(tensors(1, count=3, size=64))
    place = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[place] ^= data.draw(st.integers(1, 255))
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"lmcache-checkpoint-{os.getpid()}"
    try:
        before = weights_fingerprint(write(folder, model__safetensors=content))
        assert weights_fingerprint(write(folder, model__safetensors=bytes(changed))) != before
    finally:
        shutil.rmtree(folder)


@given(st.binary(max_size=200))
def test_a_header_may_be_anything(content: bytes) -> None:
    assert checkpoint._tensors(content, 8 + len(content)) == []


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\x01",
        (2**63).to_bytes(8, "little"),
        (5).to_bytes(8, "little") + b"12",
        (3).to_bytes(8, "little") + b"{]}x",
    ],
    ids=repr,
)
def test_files_that_are_not_what_they_are_called(tmp_path: Path, broken: bytes, read_as: str) -> None:
    folder = write(tmp_path / "m", model__safetensors=broken)
    found = weights_fingerprint(folder)
    assert found is not None
    assert weights_fingerprint(write(folder, model__safetensors=broken + b"!")) != found


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.Q4_K_M.gguf"])
def test_other_formats(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The beginning, the end and what lies between."""
    monkeypatch.setattr(checkpoint, "WHOLE_BYTES", 0)
    content = random.Random(1).randbytes(3 << 20)
    (tmp_path / name).write_bytes(content)
    before = weights_fingerprint(tmp_path)
    assert before == weights_fingerprint(tmp_path / name)
    for begin, end in ((0, 1), (len(content) - 1, len(content)), (1 << 20, 2 << 20)):
        (tmp_path / name).write_bytes(content[:begin] + bytes(b ^ 1 for b in content[begin:end]) + content[end:])
        assert weights_fingerprint(tmp_path) != before, begin


def test_of_several_formats_the_one_that_is_loaded_counts(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", model__safetensors=safetensors(tensors(1)))
    before = weights_fingerprint(folder)
    write(folder, pytorch_model__bin=b"other", training_args__bin=b"x", README__md=b"x")
    assert weights_fingerprint(folder) == before
    assert [path.name for path in weights_files(folder, [(".bin", ".pt")])] == ["pytorch_model.bin"]
    assert weights_fingerprint(folder, [(".bin", ".pt")]) != before


def test_where_there_are_no_weights(tmp_path: Path) -> None:
    assert weights_fingerprint(tmp_path) is None
    assert weights_fingerprint(tmp_path / "gone") is None
    (tmp_path / "model.safetensors").mkdir()
    assert weights_fingerprint(tmp_path) is None
    (tmp_path / "pytorch_model.bin").symlink_to("gone")
    assert weights_fingerprint(tmp_path) is None
    assert adapter_fingerprint(tmp_path) is None


def test_a_huge_checkpoint_is_read_in_few_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """163 files of 91,280 tensors and 652 GiB: some thousand reads, and no header is parsed."""
    for number in range(163):
        names = [f"model.layers.{number}.mlp.experts.{expert}.down_proj.weight" for expert in range(560)]
        size = 7 << 20
        header = json.dumps(
            {
                name: {"dtype": "F8_E4M3", "shape": [size], "data_offsets": [size * at, size * (at + 1)]}
                for at, name in enumerate(names)
            }
        ).encode()
        with open(tmp_path / f"model-{number:05}.safetensors", "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + size * 560)
    reads: list[int] = []
    pread = os.pread

    def counted(fd: int, length: int, at: int) -> bytes:
        reads.append(length)
        return pread(fd, length, at)

    monkeypatch.setattr(os, "pread", counted)
    assert weights_fingerprint(tmp_path) is not None
    assert len(reads) <= 4096 + 2 * 163
    assert sum(reads) < 20 << 20


def test_an_adapter_is_its_weights_and_how_they_are_used(tmp_path: Path) -> None:
    config = {"r": 8, "lora_alpha": 16, "base_model_name_or_path": "/models/m", "target_modules": ["q_proj"]}

    def adapter(name: str, weights: int = 1, **changed: Any) -> str | None:
        folder = write(
            tmp_path / name,
            adapter_model__safetensors=safetensors(tensors(weights)),
            adapter_config__json=json.dumps(config | changed).encode(),
        )
        return adapter_fingerprint(folder)

    base = adapter("a")
    assert adapter("elsewhere", base_model_name_or_path="/home/m", peft_version="2") == base
    others = [adapter("b", weights=2), adapter("c", lora_alpha=32), adapter("d", use_rslora=True), adapter("e", r=16)]
    assert len({base, *others}) == 5
    write(tmp_path / "a", adapter_config__json=b"{broken")
    assert adapter_fingerprint(tmp_path / "a") not in (base, None)
    (tmp_path / "a/adapter_config.json").unlink()
    assert adapter_fingerprint(tmp_path / "a") not in (base, None)


def test_a_stamp_changes_when_a_file_is_written_or_replaced(tmp_path: Path) -> None:
    file = tmp_path / "adapter_model.bin"
    file.write_bytes(b"one")
    before = stamp([file])
    assert stamp([file]) == before
    other = tmp_path / "new"
    other.write_bytes(b"two")
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.rename(file)
    assert stamp([file]) != before
    file.unlink()
    with pytest.raises(FileNotFoundError):
        stamp([file])
