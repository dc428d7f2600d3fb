"""The binding against the header that its functions are declared in."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

from lmcache_transfer_torch.cuda import libcuda
from lmcache_transfer_torch.cuda.driver import HANDLE_BYTES, LASTING

REPOSITORY = Path(__file__).resolve().parents[4]
HEADERS = sorted((REPOSITORY / ".venv-engine").glob("lib/python3*/site-packages/triton/backends/nvidia/include/cuda.h"))

pytestmark = pytest.mark.skipif(not HEADERS, reason="cuda.h comes with triton, in .venv-engine")

KINDS = {
    "unsigned int": ctypes.c_uint,
    "int": ctypes.c_int,
    "CUdevice": ctypes.c_int,
    "CUresult": ctypes.c_int,
    "CUdevice_attribute": ctypes.c_int,
    "size_t": ctypes.c_size_t,
    "unsigned char": ctypes.c_ubyte,
    "cuuint64_t": ctypes.c_uint64,
    "CUdeviceptr": ctypes.c_uint64,
    "CUipcMemHandle": libcuda._Handle,
    "CUipcEventHandle": libcuda._Handle,
}
OBJECTS = ("CUcontext", "CUstream", "CUevent", "CUmodule", "CUfunction", "CUhostFn")


@pytest.fixture(scope="module")
def header() -> str:
    text = re.sub(r"/\*.*?\*/", "", HEADERS[0].read_text(), flags=re.DOTALL)
    return re.sub(r"__CUDA_API_\w+\((\w+)\)", r"\1", text)


def _kind(declared: str) -> Any:
    words = re.sub(r"\bconst\b", "", declared)
    pointers = words.count("*")
    name = re.sub(r"\s+", " ", words.replace("*", " ")).strip()
    for known in sorted((*KINDS, *OBJECTS, "void", "char", "CUuuid"), key=len, reverse=True):
        if name == known or name.startswith(known + " "):
            break
    else:
        raise AssertionError(f"unknown type in {declared!r}")
    if known in OBJECTS:
        kind: Any = ctypes.c_void_p
    elif known == "void":
        kind, pointers = ctypes.c_void_p, pointers - 1
    elif known == "char":
        kind, pointers = ctypes.c_char_p, pointers - 1
    elif known == "CUuuid":
        kind = libcuda._Uuid
    else:
        kind = KINDS[known]
    for _ in range(pointers):
        kind = ctypes.POINTER(kind)
    return kind


@pytest.mark.parametrize("call", sorted(libcuda._CALLS))
def test_a_function_is_called_as_it_is_declared(header: str, call: str) -> None:
    name = call.removesuffix("_v2")
    declared = re.search(rf"CUresult\s+CUDAAPI\s+{name}\((.*?)\);", header, re.DOTALL)
    assert declared is not None
    parameters = [part for part in (p.strip() for p in declared.group(1).split(",")) if part != "void"]
    expected = [_kind(parameter) for parameter in parameters]
    given = [ctypes.c_char_p if kind is ctypes.c_void_p and name == "cuModuleLoadData" else kind for kind in expected]
    # An image is read only, and is handed over as bytes.
    if name == "cuModuleLoadData":
        given[0], given[1] = expected[0], ctypes.c_char_p
    assert list(libcuda._CALLS[call]) == given


@pytest.mark.parametrize("call", sorted(libcuda._CALLS))
def test_the_latest_form_of_a_function_is_used(header: str, call: str) -> None:
    name = call.removesuffix("_v2")
    newer = re.search(rf"#\s*define\s+{name}\s+{name}_v(\d)\b", header)
    assert call == (f"{name}_v{newer.group(1)}" if newer else name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS", libcuda._MEMORY_LAZY_PEERS),
        ("CU_EVENT_DISABLE_TIMING", libcuda._EVENT_UNTIMED),
        ("CU_EVENT_INTERPROCESS", libcuda._EVENT_SHARED),
        ("CU_STREAM_NON_BLOCKING", libcuda._STREAM_NON_BLOCKING),
        ("CU_STREAM_WAIT_VALUE_GEQ", libcuda._WAIT_GEQ),
        ("CU_STREAM_WRITE_VALUE_DEFAULT", libcuda._WRITE_DEFAULT),
        ("CU_MEMHOSTALLOC_PORTABLE", libcuda._HOST_PORTABLE),
        ("CU_MEMHOSTREGISTER_PORTABLE", libcuda._PORTABLE_REGISTER),
        ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR", libcuda._COMPUTE_MAJOR),
        ("CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR", libcuda._COMPUTE_MINOR),
        ("CU_IPC_HANDLE_SIZE", HANDLE_BYTES),
        ("CUDA_ERROR_NOT_READY", libcuda._NOT_READY),
    ],
)
def test_a_number_is_the_one_of_the_header(header: str, name: str, value: int) -> None:
    found = re.search(rf"\b{name}\s*=?\s*(0x[0-9a-fA-F]+|\d+)", header)
    assert found is not None
    assert int(found.group(1), 0) == value


def test_errors_that_last_exist(header: str) -> None:
    assert {name for name in LASTING if not re.search(rf"\b{name}\s*=", header)} == set()
