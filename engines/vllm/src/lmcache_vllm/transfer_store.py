"""From the pages of the model into leased slots of L1, without a copy in between."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lmcache_client import ABANDON_STORE, EngineKey, LMCacheError, NoAnswerError, PrepareStoreReply
from lmcache_vllm.blend_store import SegmentGather
from lmcache_vllm.layerwise import LayerProgress
from lmcache_vllm.placement import Placement
from lmcache_vllm.transfer_registration import Registration
from lmcache_vllm.transfer_session import ServerSession
from lmcache_vllm.transfer_task import CancelledError, Outcome, TransferTask

if TYPE_CHECKING:  # it needs torch
    from lmcache_vllm.blend_pages import BlendPages

logger = logging.getLogger(__name__)

Gather = Callable[[Sequence[Sequence[int]], Sequence[int], Sequence[int]], int]
"""As `ChunkPages.gather`."""


def store(
    task: TransferTask,
    session: ServerSession,
    placement: Placement,
    after_reading: Callable[[], None],
    rows: BlendPages | None = None,
    progress: LayerProgress | None = None,
) -> Outcome:
    """Store the chunks of a transfer that the server does not have yet. Waits for the server; raises nothing because of
    it. `after_reading` is called as soon as the blocks are not needed any more, once, if they were read to the end. `rows`: the
    same pages, token by token, which segments need. `progress`: of the model, which writes the layers meanwhile.

    A chunk is published only when all of it was copied: whatever goes wrong gives the lease back instead.
    """
    with session.use() as registration:
        if registration is None:
            return Outcome(failure="no_server")
        if registration.pages.chunk_tokens != task.transfer.chunk_tokens:
            return Outcome(failure="chunk_size")
        key = task.key(placement)
        asked = time.monotonic()
        gather: Gather = registration.pages.gather
        if task.transfer.segment is not None:
            if rows is None:
                return Outcome(failure="no_blending")
            gather = SegmentGather(task.transfer.segment, rows, registration.pages)
        try:
            if task.transfer.segment is None:
                registration.pages.check(task.transfer.block_ids, task.chunks)
            reply = registration.channel.prepare_store(key, registration.instance_id)
            if reply.context.slots:
                registration.heard(asked)
            copy = _gather if progress is None else partial(_gather_layers, progress)
            return _fill(task, registration, key, reply, gather, after_reading, copy)
        except NoAnswerError as error:
            logger.warning("a store was not answered request=%s reason=%s", task.transfer.request_id, error)
            session.suspect(registration)
            return Outcome(failure="no_answer")
        except (LMCacheError, ValueError) as error:
            logger.error("a store went wrong request=%s reason=%s", task.transfer.request_id, error)
            return Outcome(failure="refused")
        except Exception:
            session.suspect(registration)  # a new registration gives back what this one has leased
            raise


def _fill(
    task: TransferTask,
    registration: Registration,
    key: EngineKey,
    reply: PrepareStoreReply,
    gather: Gather,
    after_reading: Callable[[], None],
    copy: Callable[[TransferTask, Registration, dict[int, int], Gather], int],
) -> Outcome:
    slots, indexes = reply.context.slots, reply.context.chunk_indices
    if not isinstance(slots, tuple) or not isinstance(indexes, tuple) or not slots:
        return Outcome()  # everything is there, or there is no room
    moved, failure = 0, ""
    try:
        places = dict(zip(indexes, registration.addresses(slots), strict=True))
        if len(places) != len(slots) or not all(0 <= chunk < task.chunks for chunk in places):
            raise ValueError(f"the server asked for the chunks {indexes} of {task.chunks}")
        moved = copy(task, registration, places, gather)
    except CancelledError:
        failure = "cancelled"
    except TimeoutError:
        failure = "too_late"
    except (LMCacheError, ValueError, OSError) as error:
        logger.error("a store could not be copied request=%s reason=%s", task.transfer.request_id, error)
        failure = "copy"
    if failure:
        registration.channel.submit(ABANDON_STORE, key, registration.instance_id)
        return Outcome(failure=failure)
    after_reading()
    if not registration.channel.commit_store(key, registration.instance_id):
        return Outcome(failure="refused")
    return Outcome(moved)


def _gather(task: TransferTask, registration: Registration, places: dict[int, int], gather: Gather) -> int:
    """Copy chunks, by number, to addresses. Raises TimeoutError when the registration is fenced."""
    moved = 0
    for batch in registration.pages.batches(sorted(places)):
        with task.touching():
            if registration.is_fenced:
                raise TimeoutError
            moved += gather(task.transfer.block_ids, batch, [places[chunk] for chunk in batch])
    return moved


def _gather_layers(
    progress: LayerProgress, task: TransferTask, registration: Registration, places: dict[int, int], gather: Gather
) -> int:
    """As `_gather`, each layer as soon as the model has written it. Raises CancelledError where it does not come to that."""
    moved, chunks = 0, sorted(places)
    for layer in range(registration.pages.layers):
        if not progress.wait(layer + 1):
            raise CancelledError
        with task.touching():
            if registration.is_fenced:
                raise TimeoutError
            moved += registration.pages.gather(
                task.transfer.block_ids, chunks, [places[chunk] for chunk in chunks], layer
            )
    return moved
