"""Compiled page kernels.

They are compiled in a child process: a compiler that crashes, hangs or grows must not take the server with it, and the
server needs neither torch nor triton in memory.  triton keeps what it compiled on disk, so a second start is quick.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lmcache_transfer_torch.cuda.page_shape import PageShape
from lmcache_transfer_torch.device import DeviceError

COMPILE_SECONDS: Final = 60.0
CHILD: Final = "lmcache_transfer_torch.cuda.page_compiler"
_REASON_MAX: Final = 400


class PageImage(NamedTuple):
    """A kernel for one architecture, ready to be loaded."""

    image: bytes
    name: str
    threads: int
    shared_bytes: int
    parameters: tuple[str, ...]
    """Types of its parameters, `i32` or `i64`, in order."""


Compile = Callable[[PageShape, bool, int], PageImage]
"""`(shape, gather, capability)`; raises DeviceError."""


class PageCompiler:
    """Each kernel is compiled once.  Any thread; those that want the same kernel wait for it."""

    def __init__(self, python: str = sys.executable) -> None:
        self._python = python
        self._lock = threading.Lock()
        self._images: dict[tuple[PageShape, bool, int], PageImage] = {}

    def __call__(self, shape: PageShape, gather: bool, capability: int) -> PageImage:
        wanted = (shape, gather, capability)
        with self._lock:
            known = self._images.get(wanted)
        if known is None:
            known = self._compile(*wanted)
            with self._lock:
                self._images[wanted] = known
        return known

    def _compile(self, shape: PageShape, gather: bool, capability: int) -> PageImage:
        order = json.dumps({"shape": dataclasses.asdict(shape), "gather": gather, "capability": capability})
        try:
            child = subprocess.run(
                [self._python, "-m", CHILD],
                input=order.encode(),
                capture_output=True,
                timeout=COMPILE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DeviceError(f"the compiler of the page kernels did not answer: {error}") from None
        if child.returncode:
            said = child.stderr.decode("utf-8", "replace").strip()[-_REASON_MAX:]
            remedy = "pip install 'lmcache-transfer-torch[cuda]' into the server's environment, or a triton that fits the GPU"
            raise DeviceError(f"page kernels cannot be compiled: {said}; {remedy}")
        head, _, image = child.stdout.partition(b"\n")
        made: dict[str, Any] = json.loads(head)
        return PageImage(image, made["name"], made["threads"], made["shared"], tuple(made["parameters"]))
