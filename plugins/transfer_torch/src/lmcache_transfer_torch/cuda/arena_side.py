"""L1, as the GPU's copies reach it: pinned memory, memory that is not pinned, or a file."""

from __future__ import annotations

from lmcache_core import MemoryRegion
from lmcache_transfer_torch.cuda.arena_pins import ArenaPins
from lmcache_transfer_torch.cuda.driver import GpuDriver, Span
from lmcache_transfer_torch.cuda.file_side import DeviceFile, KvikioFile
from lmcache_transfer_torch.device import DeviceError


class ArenaSide:
    """One for all GPUs: what is pinned is pinned for all of them.  `driver` is the one that pins."""

    def __init__(self, region: MemoryRegion | None, pins: ArenaPins | None, file: DeviceFile | None, way: str) -> None:
        self.region = region
        self.file = file
        self._pins = pins
        self._way = way

    @classmethod
    def of(cls, region: MemoryRegion | None, driver: GpuDriver) -> ArenaSide:
        if region is None:
            return cls(None, None, None, "through a buffer: l1 is not known to be one stretch of memory")
        if not region.is_file:
            pins = ArenaPins(driver, Span(region.address, region.length))
            return cls(region, pins, None, "pinned memory")
        if not region.direct_io or region.descriptor is None:
            return cls(region, None, None, "through a buffer and the page cache: --no-gds-l1-use-direct-io")
        try:
            return cls(region, None, KvikioFile(region.descriptor), "between gpu and file, by kvikio")
        except DeviceError as error:
            return cls(region, None, None, f"through a buffer and the page cache: {error}")

    @property
    def seam_bytes(self) -> int:
        """No copy crosses a multiple of this; 0: it may be anywhere."""
        return self._pins.slice_bytes if self._pins else 0

    def covers(self, address: int, length: int) -> bool:
        """Can a copy engine reach it?"""
        return self._pins is not None and self._pins.covers(address, length)

    def status(self) -> dict[str, object]:
        return {"transfers": self._way, **(self._pins.status() if self._pins else {})}

    def close(self) -> None:
        """No transfer runs any more."""
        if self._pins is not None:
            self._pins.close()
        if self.file is not None:
            self.file.close()
