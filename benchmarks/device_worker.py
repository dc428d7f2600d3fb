"""The process of an engine worker with its KV cache in GPU memory, for measurements and for the tests that need a GPU.

`python -m benchmarks.device_worker KIND BYTES` serves commands on stdin, one JSON value per line, and answers on stdout:
`torch` makes its memory with torch and describes it both ways, `plain` needs the driver only.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any, Self

from lmcache_transfer_torch.cuda.libcuda import CudaDrivers
from lmcache_transfer_torch.cuda.semaphore_handle import BUFFER_BYTES, SemaphoreHandle

ANSWER_SECONDS = 120.0


class DeviceWorker:
    """The parent's end."""

    def __init__(self, kind: str, nbytes: int) -> None:
        command = [sys.executable, "-m", "benchmarks.device_worker", kind, str(nbytes)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.described: dict[str, Any] = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def ask(self, verb: str, **arguments: Any) -> Any:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"verb": verb, **arguments}) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        self._child.kill()
        self._child.communicate()

    def _answer(self) -> Any:
        assert self._child.stdout is not None
        watch = threading.Timer(ANSWER_SECONDS, self._child.kill)
        watch.start()
        try:
            line = self._child.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            raise RuntimeError(f"the worker's process ended with {self._child.wait()}")
        return json.loads(line)


class _PlainChild:
    """Memory and events by the driver alone."""

    def __init__(self, nbytes: int) -> None:
        self.driver = CudaDrivers().open(0)
        self.nbytes = nbytes
        self.stream = self.driver.create_stream()
        self.address = self._allocate(nbytes)
        self.staging = self.driver.allocate_host(nbytes)
        self.semaphores = self.driver.allocate(BUFFER_BYTES)
        self.driver.clear(self.semaphores, BUFFER_BYTES)
        self.sequence = 0
        self.events: list[int] = []

    def _allocate(self, nbytes: int) -> int:
        return self.driver.allocate(nbytes)

    def describe(self) -> dict[str, Any]:
        whole = self.driver.allocation(self.address)
        return {
            "uuid": self.driver.info.uuid,
            "raw": self.driver.export_memory(whole.address).hex(),
            "offset": self.address - whole.address,
            "nbytes": self.nbytes,
        }

    def fill(self, seed: int) -> None:
        """A pattern that says where each byte belongs."""
        numbers = (ctypes.c_uint32 * (self.nbytes // 4)).from_address(self.staging)
        numbers[:] = [(index * 2654435761 + seed) & 0xFFFFFFFF for index in range(len(numbers))]
        self.driver.copy_to_device(self.address, self.staging, self.nbytes, self.stream)

    def read(self) -> str:
        self.driver.synchronize()
        self.driver.copy_to_host(self.staging, self.address, self.nbytes, self.stream)
        self.driver.synchronize()
        return ctypes.string_at(self.staging, self.nbytes).hex()

    def event(self) -> str:
        """Behind what was submitted so far."""
        self.events.append(self.driver.create_event(True))
        self.driver.record(self.events[-1], self.stream)
        return self.driver.export_event(self.events[-1]).hex()

    def semaphore(self) -> str:
        self.sequence += 1
        self.driver.write_value(self.stream, self.semaphores + 8, self.sequence)
        return SemaphoreHandle(self.driver.export_memory(self.semaphores), 8, self.sequence).encode().hex()

    def wait_event(self, handle: str) -> None:
        """As a worker that needs what was retrieved."""
        event = self.driver.open_event(bytes.fromhex(handle))
        self.driver.wait_event(self.stream, event)
        while not self.driver.is_complete(event):
            pass
        self.driver.destroy_event(event)

    def loop(self, seconds: float) -> float:
        raise NotImplementedError("only torch computes here")


class _TorchChild(_PlainChild):
    """Memory of torch's allocator, described as torch shares it."""

    def _allocate(self, nbytes: int) -> int:
        import torch

        self._torch = torch
        self._tensor = torch.zeros(nbytes, dtype=torch.uint8, device="cuda:0")
        torch.cuda.synchronize()
        address: int = self._tensor.data_ptr()
        return address

    def describe(self) -> dict[str, Any]:
        handle = [
            value.hex() if isinstance(value, bytes) else value
            for value in self._tensor.untyped_storage()._share_cuda_()
        ]
        return {**super().describe(), "torch": handle}

    def loop(self, seconds: float) -> float:
        """Matrix products per second, of a size that keeps the GPU's cores busy."""
        torch = self._torch
        left = torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda:0")
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        count = 0
        begin.record()
        while True:
            for _ in range(50):
                torch.mm(left, left)
            count += 50
            end.record()
            end.synchronize()
            if begin.elapsed_time(end) >= seconds * 1000:
                rate: float = count * 1000.0 / begin.elapsed_time(end)
                return rate


def main() -> None:
    kind, nbytes = sys.argv[1], int(sys.argv[2])
    child = (_TorchChild if kind == "torch" else _PlainChild)(nbytes)
    print(json.dumps(child.describe()), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        verb = order.pop("verb")
        print(json.dumps(getattr(child, verb)(**order)), flush=True)


if __name__ == "__main__":
    main()
