"""From slots of L1 into the pages of the model, without a copy in between."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence

from lmcache_client import COMMIT_RETRIEVE, LMCacheError, NoAnswerError, PrepareRetrieveReply
from lmcache_vllm.layerwise import LayerProgress
from lmcache_vllm.placement import Placement
from lmcache_vllm.transfer_registration import Registration
from lmcache_vllm.transfer_session import ServerSession
from lmcache_vllm.transfer_task import CancelledError, Outcome, TransferTask

logger = logging.getLogger(__name__)


def load(
    task: TransferTask, session: ServerSession, placement: Placement, progress: LayerProgress | None = None
) -> Outcome:
    """Load all chunks of a transfer. Waits for the server; raises nothing because of it. A chunk counts as loaded only
    when all of its blocks were written while the server held it. `progress`: of layers that are loaded one by one."""
    everything = range(task.chunks)
    with session.use() as registration:
        if registration is None:
            return Outcome(failure="no_server", failed_chunks=everything)
        if registration.pages.chunk_tokens != task.transfer.chunk_tokens:
            return Outcome(failure="chunk_size", failed_chunks=everything)
        key = task.key(placement)
        asked = time.monotonic()
        try:
            registration.pages.check(task.transfer.block_ids, task.chunks)
            reply = registration.channel.prepare_retrieve(key, registration.instance_id)
            try:
                if not reply.success:
                    return Outcome(failure="missing", failed_chunks=everything)
                registration.heard(asked)
                return _read(task, registration, reply, progress)
            finally:
                registration.channel.tell(COMMIT_RETRIEVE, key, registration.instance_id)
        except NoAnswerError as error:
            logger.warning("a load was not answered request=%s reason=%s", task.transfer.request_id, error)
            session.suspect(registration)
            return Outcome(failure="no_answer", failed_chunks=everything)
        except (LMCacheError, ValueError) as error:
            logger.error("a load went wrong request=%s reason=%s", task.transfer.request_id, error)
            return Outcome(failure="refused", failed_chunks=everything)
        except Exception:
            session.suspect(registration)  # a new registration gives back what this one has leased
            raise


def _copies(
    task: TransferTask, registration: Registration, progress: LayerProgress | None
) -> Iterator[tuple[Sequence[int], int | None]]:
    """Chunks, and the number of a layer, which are copied at once."""
    chunks = range(task.chunks)
    if progress is None:
        yield from ((batch, None) for batch in registration.pages.batches(chunks))
    else:
        yield from ((chunks, layer) for layer in range(registration.pages.layers))


def _read(
    task: TransferTask, registration: Registration, reply: PrepareRetrieveReply, progress: LayerProgress | None
) -> Outcome:
    slots = reply.context.slots
    if not isinstance(slots, tuple) or len(slots) != task.chunks:
        raise ValueError(f"the server gave {slots!r:.100} for {task.chunks} chunks")
    addresses = registration.addresses(slots)
    moved, done, failure = 0, 0, ""
    try:
        for batch, layer in _copies(task, registration, progress):
            with task.touching():
                moved += registration.pages.scatter(
                    task.transfer.block_ids, batch, [addresses[chunk] for chunk in batch], layer
                )
            if progress is not None and layer is not None:
                progress.reach(layer + 1)
            else:
                done += len(batch)
        done = task.chunks
    except CancelledError:
        failure = "cancelled"
    except OSError as error:
        logger.error("a load could not be copied request=%s reason=%s", task.transfer.request_id, error)
        failure = "copy"
    if registration.is_fenced:
        # The server may have taken this worker for dead, and given the slots to others while they were read.
        failure, done = "too_late", 0
    return Outcome(moved, failure, range(done, task.chunks))
