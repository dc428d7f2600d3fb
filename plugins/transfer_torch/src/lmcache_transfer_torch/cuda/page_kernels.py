"""Page kernels of one GPU, loaded."""

from __future__ import annotations

import threading
from typing import Final, NamedTuple

from lmcache_transfer_torch.cuda.driver import GpuDriver
from lmcache_transfer_torch.cuda.page_images import Compile
from lmcache_transfer_torch.cuda.page_shape import PageShape
from lmcache_transfer_torch.device import DeviceError

_OURS: Final = ("i64", "i64", "i64", "i64", "i32")
"""bases, blocks, objects, object_words, first_plane."""
_GRID_MAX: Final = 65535
"""Of the second and third dimension of a grid."""


class _Loaded(NamedTuple):
    module: int
    function: int
    threads: int
    parameters: tuple[str, ...]


class PageKernels:
    """Each is compiled and loaded once.  Any thread."""

    def __init__(self, driver: GpuDriver, compile_kernel: Compile) -> None:
        self._driver = driver
        self._compile = compile_kernel
        self._lock = threading.Lock()
        self._loaded: dict[tuple[PageShape, bool], _Loaded] = {}

    def prepare(self, shape: PageShape, gather: bool) -> None:
        """Takes a second for a kernel that this machine has not compiled before.  Raises DeviceError."""
        with self._lock:
            if (shape, gather) in self._loaded:
                return
        made = self._compile(shape, gather, self._driver.info.capability)
        added = made.parameters[len(_OURS) :]
        if made.parameters[: len(_OURS)] != _OURS or set(added) - {"i64"} or made.shared_bytes:
            raise DeviceError(
                f"the compiler made a kernel with parameters {', '.join(made.parameters)} and {made.shared_bytes} bytes "
                "of shared memory, which is not how page kernels are started; install a triton that this version knows"
            )
        module = self._driver.load(made.image)
        try:
            loaded = _Loaded(module, self._driver.function(module, made.name), made.threads, made.parameters)
        except DeviceError:
            self._driver.unload(module)
            raise
        with self._lock:
            kept = self._loaded.setdefault((shape, gather), loaded)
        if kept is not loaded:
            self._driver.unload(module)

    def move(
        self,
        shape: PageShape,
        gather: bool,
        bases: int,
        blocks: int,
        staged: int,
        object_bytes: int,
        objects: int,
        planes: range,
        stream: int,
    ) -> None:
        """Move these planes of `objects` objects between pages and the staging buffer at `staged`, where each object takes
        `object_bytes`.  `bases` and `blocks` are tables on the GPU; the latter begins with the first object's ids."""
        loaded = self._loaded[shape, gather]
        grid = (shape.tiles, objects * shape.blocks, len(planes))
        if max(grid[1:]) > _GRID_MAX:
            raise DeviceError(f"a transfer of {grid[1]} blocks and {grid[2]} planes at once is too large")
        ours = (bases, blocks, staged, object_bytes // shape.word_bytes, planes.start)
        values = (*ours, *(0,) * (len(loaded.parameters) - len(ours)))
        self._driver.launch(
            loaded.function, grid, loaded.threads, tuple(zip(loaded.parameters, values, strict=True)), stream
        )

    def close(self) -> None:
        for loaded in self._loaded.values():
            self._driver.unload(loaded.module)
        self._loaded.clear()
