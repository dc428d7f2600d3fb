"""Nothing that a hostile peer can put into `commit_store` data is executed, and nothing but a refusal comes of it."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmcache_client.errors import ProtocolError
from lmcache_client.layout import ITEM_BYTES
from lmcache_client.stock_pickles import read_tensors

OPCODES = [ord(opcode.code) for opcode in pickletools.opcodes]


class Canary:
    """Pickles as a shell command that makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self._path}'",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_command_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    for value in (Canary(tmp_path / "a"), [Canary(tmp_path / "b")]):
        with pytest.raises(ProtocolError):
            read_tensors(pickle.dumps(value, protocol), 8)
    assert list(tmp_path.iterdir()) == []
    pickle.loads(pickle.dumps(Canary(tmp_path / "control"), protocol))
    assert (tmp_path / "control").exists(), "the command of this test would not have run anyway"


def _commands(path: Path) -> dict[str, bytes]:
    """The same command by every opcode that can reach code."""
    line = f"touch '{path}'"
    text = b"\x8c" + bytes([len(line)]) + line.encode()
    system = b"\x8c\x02os\x8c\x06system\x93"
    return {
        "STACK_GLOBAL REDUCE": system + text + b"\x85R",
        "GLOBAL REDUCE": b"cos\nsystem\n" + text + b"\x85R",
        "INST": b"(" + text + b"ios\nsystem\n",
        "OBJ": b"(" + system + text + b"o",
        "NEWOBJ": system + text + b"\x85\x81",
        "NEWOBJ_EX": system + text + b"\x85}\x92",
        "BUILD": system + text + b"b",
        "PERSID": b"P" + line.encode() + b"\n",
        "BINPERSID": text + b"Q",
        "EXT1": b"\x82\x01",
        "EXT2": b"\x83\x01\x00",
        "EXT4": b"\x84\x01\x00\x00\x00",
        "NEXT_BUFFER": b"\x97",
        "SETITEM": b"}" + text + system + b"s",
        "builtins.eval": b"\x8c\x08builtins\x8c\x04eval\x93\x8c\x010\x85R",
        "torch.load": b"\x8c\x05torch\x8c\x04load\x93" + text + b"\x85R",
        "dotted name": b"\x8c\x0dtorch.storage\x8c\x19_load_from_bytes.__call__\x93" + text + b"\x85R",
    }


@pytest.mark.parametrize("name", sorted(_commands(Path())))
@pytest.mark.parametrize("place", ["value", "element", "argument"])
def test_no_opcode_reaches_code(tmp_path: Path, name: str, place: str) -> None:
    command = _commands(tmp_path / "canary")[name]
    load = b"\x8c\x0dtorch.storage\x8c\x10_load_from_bytes\x93"
    message = {"value": command, "element": b"](" + command + b"e", "argument": b"](" + load + command + b"\x85Re"}[
        place
    ]
    with pytest.raises(ProtocolError):
        read_tensors(b"\x80\x04" + message + b".", 8)
    assert not (tmp_path / "canary").exists()


def test_an_inner_stream_with_a_command_is_refused_and_not_run(tmp_path: Path, fake_torch: Any) -> None:
    good = fake_torch.storage("uint8", b"a")
    command = pickle.dumps(Canary(tmp_path / "canary"), 2)
    for stream in (command, command + good, good[: good.index(b"\x80\x02}")] + command):
        fake_torch_list = b"\x80\x04](\x8c\x0dtorch.storage\x8c\x10_load_from_bytes\x93B"
        message = fake_torch_list + struct.pack("<I", len(stream)) + stream + b"\x85Re."
        with pytest.raises(ProtocolError, match="storage is not in the form"):
            read_tensors(message, 8)
    assert not (tmp_path / "canary").exists()


class _Strict(pickle.Unpickler):
    """Evaluates only what the reader should have accepted, with stand-ins for torch."""

    def find_class(self, module: str, name: str) -> Any:
        return lambda *arguments: (module, name, arguments)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_pickles_are_refused_or_well_formed(recorded: dict[str, bytes], data: st.DataObject) -> None:
    messages = sorted(recorded.values())
    message = bytearray(data.draw(st.sampled_from(messages)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(message)))
        match data.draw(st.sampled_from(["flip", "set", "insert", "delete", "splice"])):
            case "flip":
                message[at % len(message)] ^= 1 << data.draw(st.integers(0, 7))
            case "set":
                message[at % len(message)] = data.draw(st.sampled_from(OPCODES))
            case "insert":
                message[at:at] = data.draw(st.binary(min_size=1, max_size=6))
            case "delete":
                del message[at : at + data.draw(st.integers(1, 12))]
                message = message or bytearray(b"\x80")
            case "splice":
                other = data.draw(st.sampled_from(messages))
                start = data.draw(st.integers(0, len(other)))
                message[at : at + data.draw(st.integers(0, 20))] = other[start : start + data.draw(st.integers(0, 80))]
    final = bytes(message)
    try:
        tensors = read_tensors(final, 4)
    except ProtocolError:
        return
    for tensor in tensors:
        assert tensor.data.nbytes == prod(tensor.shape) * ITEM_BYTES[tensor.dtype] > 0
        assert tensor.data.obj is final
    # What is accepted is a pickle for every reader: the same number of elements by the real unpickler.
    assert len(_Strict(io.BytesIO(final)).load()) == len(tensors)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(junk: bytes) -> None:
    for message in (junk, b"\x80\x04" + junk, b"\x80\x04](" + junk):
        if message not in (b"\x80\x04].", b"\x80\x04](e."):
            with pytest.raises(ProtocolError):
                read_tensors(message, 4)
