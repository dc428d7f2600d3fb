"""The GPU driver's library, bound with ctypes: calls release the interpreter, and nothing has to be compiled.

A device's primary context is used, the one that torch uses as well.  It is made current on a thread when the thread first
calls, and after that only where another device was used in between.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Final
from uuid import UUID

from lmcache_transfer_torch.cuda.driver import HANDLE_BYTES, DriverError, GpuInfo, Span
from lmcache_transfer_torch.device import DeviceError

LIBRARY: Final = "libcuda.so.1"

_SUCCESS, _NOT_READY = 0, 600
_MEMORY_LAZY_PEERS = 1
_EVENT_UNTIMED, _EVENT_SHARED = 2, 4
_STREAM_NON_BLOCKING = 1
_HOST_PORTABLE = 1
_WAIT_GEQ, _WRITE_DEFAULT = 0, 0
_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76
_PORTABLE_REGISTER = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", c_char * HANDLE_BYTES),)


class _Uuid(ctypes.Structure):
    _fields_ = (("bytes", c_char * 16),)


_ADDRESS, _STREAM, _EVENT, _MODULE, _FUNCTION, _CONTEXT = c_uint64, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p

_CALLS: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetUuid_v2": (POINTER(_Uuid), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(_CONTEXT), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (_CONTEXT,),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (POINTER(_ADDRESS), c_size_t),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemHostAlloc": (POINTER(c_void_p), c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemHostRegister_v2": (c_void_p, c_size_t, c_uint),
    "cuMemHostUnregister": (c_void_p,),
    "cuMemGetAddressRange_v2": (POINTER(_ADDRESS), POINTER(c_size_t), _ADDRESS),
    "cuMemsetD8_v2": (_ADDRESS, ctypes.c_ubyte, c_size_t),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, c_void_p, c_size_t, _STREAM),
    "cuMemcpyDtoHAsync_v2": (c_void_p, _ADDRESS, c_size_t, _STREAM),
    "cuIpcOpenMemHandle_v2": (POINTER(_ADDRESS), _Handle, c_uint),
    "cuIpcCloseMemHandle": (_ADDRESS,),
    "cuIpcGetMemHandle": (POINTER(_Handle), _ADDRESS),
    "cuIpcOpenEventHandle": (POINTER(_EVENT), _Handle),
    "cuIpcGetEventHandle": (POINTER(_Handle), _EVENT),
    "cuStreamCreate": (POINTER(_STREAM), c_uint),
    "cuStreamDestroy_v2": (_STREAM,),
    "cuStreamQuery": (_STREAM,),
    "cuStreamWaitEvent": (_STREAM, _EVENT, c_uint),
    "cuStreamWaitValue64_v2": (_STREAM, _ADDRESS, c_uint64, c_uint),
    "cuStreamWriteValue64_v2": (_STREAM, _ADDRESS, c_uint64, c_uint),
    "cuEventCreate": (POINTER(_EVENT), c_uint),
    "cuEventDestroy_v2": (_EVENT,),
    "cuEventRecord": (_EVENT, _STREAM),
    "cuEventQuery": (_EVENT,),
    "cuLaunchHostFunc": (_STREAM, c_void_p, c_void_p),
    "cuModuleLoadData": (POINTER(_MODULE), c_char_p),
    "cuModuleUnload": (_MODULE,),
    "cuModuleGetFunction": (POINTER(_FUNCTION), _MODULE, c_char_p),
    "cuLaunchKernel": (_FUNCTION, *(c_uint,) * 7, _STREAM, POINTER(c_void_p), POINTER(c_void_p)),
}
"""Every function that is used, with the types of its arguments; all of them return a status."""


class _Library:
    """The functions of `_CALLS`, with a failure as an error."""

    def __init__(self, name: str) -> None:
        try:
            library = ctypes.CDLL(name)
            self._functions = {call: getattr(library, call) for call in _CALLS}
        except (OSError, AttributeError) as error:
            raise DeviceError(
                f"no NVIDIA driver can be used: {error}; install one that knows CUDA 12, and in a container start it "
                "with the GPUs"
            ) from None
        for call, function in self._functions.items():
            function.argtypes, function.restype = _CALLS[call], c_int

    def status(self, call: str, *arguments: Any) -> int:
        status: int = self._functions[call](*arguments)
        return status

    def __call__(self, call: str, *arguments: Any) -> None:
        status = self.status(call, *arguments)
        if status != _SUCCESS:
            raise self.error(call, status)

    def error(self, call: str, status: int) -> DriverError:
        def text(function: str) -> str | None:
            value = c_char_p()
            known = self.status(function, status, byref(value)) == _SUCCESS
            return value.value.decode("utf-8", "replace") if known and value.value else None

        return DriverError(call, text("cuGetErrorName") or f"error {status}", text("cuGetErrorString") or "unknown")


class CudaDrivers:
    """Raises DeviceError where there is no driver, and DriverError where it cannot be started."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._call = call = _Library(library)
        call("cuInit", 0)
        count = c_int()
        call("cuDeviceGetCount", byref(count))
        self._gpus = tuple(self._info(ordinal) for ordinal in range(count.value))
        self._current = threading.local()
        self._post = c_void_p(ctypes.cast(ctypes.CDLL(None).sem_post, c_void_p).value)

    @property
    def gpus(self) -> Sequence[GpuInfo]:
        return self._gpus

    def open(self, ordinal: int) -> CudaDriver:
        return CudaDriver(self._call, self._gpus[ordinal], self._current, self._post)

    def _info(self, ordinal: int) -> GpuInfo:
        call, device, uuid, name = self._call, c_int(), _Uuid(), ctypes.create_string_buffer(256)
        call("cuDeviceGet", byref(device), ordinal)
        call("cuDeviceGetUuid_v2", byref(uuid), device)
        call("cuDeviceGetName", name, len(name), device)
        capability = []
        for attribute in (_COMPUTE_MAJOR, _COMPUTE_MINOR):
            value = c_int()
            call("cuDeviceGetAttribute", byref(value), attribute, device)
            capability.append(value.value)
        written = str(UUID(bytes=bytes(uuid)))
        return GpuInfo(ordinal, written, name.value.decode("utf-8", "replace"), capability[0] * 10 + capability[1])


class CudaDriver:
    """GpuDriver on the real thing."""

    def __init__(self, library: _Library, info: GpuInfo, current: threading.local, post: c_void_p) -> None:
        self._library = library
        self._info = info
        self._current = current
        self._post = post
        self._device = c_int()
        library("cuDeviceGet", byref(self._device), info.ordinal)
        self._context = c_void_p()
        library("cuDevicePrimaryCtxRetain", byref(self._context), self._device)

    @property
    def info(self) -> GpuInfo:
        return self._info

    def close(self) -> None:
        self._library("cuDevicePrimaryCtxRelease_v2", self._device)

    def _call(self, call: str, *arguments: Any) -> None:
        self._enter()
        self._library(call, *arguments)

    def _enter(self) -> None:
        if getattr(self._current, "driver", None) is not self:
            self._library("cuCtxSetCurrent", self._context)
            self._current.driver = self

    def _asked(self, call: str, about: int) -> bool:
        """Whether it is over."""
        self._enter()
        status = self._library.status(call, about)
        if status not in (_SUCCESS, _NOT_READY):
            raise self._library.error(call, status)
        return status == _SUCCESS

    def _made(self, call: str, kind: Any, *arguments: Any) -> int:
        value = kind()
        self._call(call, byref(value), *arguments)
        return value.value or 0

    # --- memory

    def allocate(self, length: int) -> int:
        return self._made("cuMemAlloc_v2", _ADDRESS, length)

    def free(self, address: int) -> None:
        self._call("cuMemFree_v2", address)

    def allocate_host(self, length: int) -> int:
        return self._made("cuMemHostAlloc", c_void_p, length, _HOST_PORTABLE)

    def free_host(self, address: int) -> None:
        self._call("cuMemFreeHost", address)

    def pin(self, address: int, length: int) -> None:
        self._call("cuMemHostRegister_v2", address, length, _PORTABLE_REGISTER)

    def unpin(self, address: int) -> None:
        self._call("cuMemHostUnregister", address)

    def open_memory(self, handle: bytes) -> int:
        return self._made("cuIpcOpenMemHandle_v2", _ADDRESS, _handle(handle), _MEMORY_LAZY_PEERS)

    def close_memory(self, address: int) -> None:
        self._call("cuIpcCloseMemHandle", address)

    def export_memory(self, address: int) -> bytes:
        handle = _Handle()
        self._call("cuIpcGetMemHandle", byref(handle), address)
        return bytes(handle)

    def allocation(self, address: int) -> Span:
        base, length = _ADDRESS(), c_size_t()
        self._call("cuMemGetAddressRange_v2", byref(base), byref(length), address)
        return Span(base.value, length.value)

    def clear(self, address: int, length: int) -> None:
        self._call("cuMemsetD8_v2", address, 0, length)
        self.synchronize()  # our streams do not wait for the null stream

    # --- streams and events

    def create_stream(self) -> int:
        return self._made("cuStreamCreate", _STREAM, _STREAM_NON_BLOCKING)

    def destroy_stream(self, stream: int) -> None:
        self._call("cuStreamDestroy_v2", stream)

    def check(self, stream: int) -> None:
        self._asked("cuStreamQuery", stream)

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")

    def create_event(self, shared: bool) -> int:
        return self._made("cuEventCreate", _EVENT, _EVENT_UNTIMED | (_EVENT_SHARED if shared else 0))

    def destroy_event(self, event: int) -> None:
        self._call("cuEventDestroy_v2", event)

    def open_event(self, handle: bytes) -> int:
        return self._made("cuIpcOpenEventHandle", _EVENT, _handle(handle))

    def export_event(self, event: int) -> bytes:
        handle = _Handle()
        self._call("cuIpcGetEventHandle", byref(handle), event)
        return bytes(handle)

    def record(self, event: int, stream: int) -> None:
        self._call("cuEventRecord", event, stream)

    def wait_event(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", stream, event, 0)

    def is_complete(self, event: int) -> bool:
        return self._asked("cuEventQuery", event)

    def wait_value(self, stream: int, address: int, value: int) -> None:
        self._call("cuStreamWaitValue64_v2", stream, address, value, _WAIT_GEQ)

    def write_value(self, stream: int, address: int, value: int) -> None:
        self._call("cuStreamWriteValue64_v2", stream, address, value, _WRITE_DEFAULT)

    def post(self, stream: int, semaphore: int) -> None:
        # The C library's own function: nothing of Python runs on the driver's thread, so it never waits for this process.
        self._call("cuLaunchHostFunc", stream, self._post, semaphore)

    # --- copies and kernels

    def copy_to_device(self, device: int, host: int, length: int, stream: int) -> None:
        self._call("cuMemcpyHtoDAsync_v2", device, host, length, stream)

    def copy_to_host(self, host: int, device: int, length: int, stream: int) -> None:
        self._call("cuMemcpyDtoHAsync_v2", host, device, length, stream)

    def load(self, image: bytes) -> int:
        return self._made("cuModuleLoadData", _MODULE, image)

    def unload(self, module: int) -> None:
        self._call("cuModuleUnload", module)

    def function(self, module: int, name: str) -> int:
        return self._made("cuModuleGetFunction", _FUNCTION, module, name.encode())

    def launch(
        self, function: int, grid: tuple[int, int, int], threads: int, arguments: Sequence[tuple[str, int]], stream: int
    ) -> None:
        values = [(ctypes.c_int32 if kind == "i32" else ctypes.c_int64)(value) for kind, value in arguments]
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self._call("cuLaunchKernel", function, *grid, threads, 1, 1, 0, stream, pointers, None)


def _handle(raw: bytes) -> _Handle:
    if len(raw) != HANDLE_BYTES:
        raise DeviceError(f"a handle has {HANDLE_BYTES} bytes, not {len(raw)}")
    handle = _Handle()
    ctypes.memmove(byref(handle), raw, HANDLE_BYTES)
    return handle
