"""Copies between pages and chunk objects, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from lmcache_kv_layout.page_job import Direction, PageJob
from lmcache_kv_layout.paged_group import PagedGroup

THREADS_MAX = 64


class PageCopier:
    """Gathers pages into chunk objects and scatters them back.  Threads may share one: it keeps nothing between calls.

    `threads` is how many may work on one call of the compiled implementation; numpy has one.  `native`: `auto` uses
    lmcache-native where it is installed, `on` raises `RuntimeError` where it is not, `off` copies with numpy.
    """

    def __init__(self, threads: int = 1, native: Literal["auto", "on", "off"] = "auto") -> None:
        if not 1 <= threads <= THREADS_MAX:
            raise ValueError(f"{threads} threads for one copy; 1 to {THREADS_MAX} are possible")
        # Only where something will be copied: a server without such workers does not pay for importing numpy.
        from lmcache_kv_layout.native_pages import native_pages
        from lmcache_kv_layout.numpy_pages import copy_with_numpy

        self._with_numpy = copy_with_numpy
        self._compiled = None if native == "off" else native_pages(threads, required=native == "on")

    @property
    def native(self) -> bool:
        """Whether copies are compiled."""
        return self._compiled is not None

    def gather(
        self,
        group: PagedGroup,
        bases: Sequence[int],
        blocks: Sequence[int],
        objects: Sequence[int],
        *,
        layers: range | None = None,
    ) -> int:
        """Copy blocks into this group's regions of chunk objects; the bytes copied.

        `bases`: the process address of each of `group.bases`. `objects`: that of the region in each object. `blocks`: ids, as
        many for each object, in order. The slots of a block -1 are filled with zeros, so that nothing of what was there before
        stays in an object.  `layers`: only these, a range of step 1; each stays at its place in the object.

        Nothing is copied before everything was checked: a `LayoutError` means that no byte was touched. `MemoryFault` says that
        pages vanished while they were copied; the objects are undefined then. The caller keeps all memory mapped until the
        call ends.
        """
        return self._copy(PageJob.checked(Direction.GATHER, group, bases, blocks, objects, 0, layers))

    def scatter(
        self,
        group: PagedGroup,
        bases: Sequence[int],
        blocks: Sequence[int],
        objects: Sequence[int],
        *,
        skip_slots: int = 0,
        layers: range | None = None,
    ) -> int:
        """Copy chunk objects back into blocks; the bytes copied.  As `gather`, but blocks that are -1 are left out.

        The first `skip_slots` slots of the first object are not written.
        """
        return self._copy(PageJob.checked(Direction.SCATTER, group, bases, blocks, objects, skip_slots, layers))

    def _copy(self, job: PageJob) -> int:
        if self._compiled is None or not job.nbytes:
            return self._with_numpy(job)
        return self._compiled.copy(job)
