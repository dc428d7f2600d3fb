"""NIXL with L1 registered: what both adapters open first and close last."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final

from lmcache_core import AdapterContext, BorrowedBuffer
from lmcache_l2_nixl.config import FileParams
from lmcache_nixl_agent.agent import Extent, NixlAgent, Registration, Segment
from lmcache_nixl_agent.transfers import TransferThread

STOP_SECONDS: Final = 5.0


class Nixl:
    """A transfer thread whose agent knows L1's memory."""

    def __init__(self, context: AdapterContext, backend: str, params: FileParams) -> None:
        """Raises ResourceError where this backend of NIXL is not available, or will not take L1's memory."""
        self._context: Final = context
        self.thread: Final = TransferThread(
            f"l2-{context.name}-nixl", context.logger,
            lambda: NixlAgent.open(context.name, backend, params.for_nixl(backend)),
        )  # fmt: skip
        self._registration: Registration | None = None
        try:
            self._registration = self.thread.call(self._register).result()
        except BaseException:
            self.thread.close(STOP_SECONDS)
            raise

    def close(self) -> bool:
        """False where transfers have not ended within some seconds: what they use must stay as it is then."""
        registration, self._registration = self._registration, None
        if registration is not None:
            ended = self.thread.call(lambda agent: agent.deregister(registration))
            ended.add_done_callback(self._tell_if_failed)
        closed = self.thread.close(STOP_SECONDS)
        if not closed:
            self._context.logger.error(
                "nixl did not end its transfers adapter=%s; it is left behind", self._context.name
            )
        return closed

    def _register(self, agent: NixlAgent) -> Registration:
        regions = self._context.regions
        return agent.register(Segment.MEMORY, [Extent(region.address, region.length) for region in regions])

    def _tell_if_failed(self, ended: Future[None]) -> None:
        error = ended.exception()
        if error is not None:
            self._context.logger.warning("L1 stays registered with nixl adapter=%s error=%s", self._context.name, error)


def borrowed(buffer: BorrowedBuffer, at: int = 0, length: int | None = None) -> Extent:
    """A part of a borrowed buffer, as memory that is registered."""
    return Extent(buffer.address + at, buffer.length - at if length is None else length)
