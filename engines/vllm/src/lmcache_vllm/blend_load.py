"""From slots of L1 into the pages of the model, chunks that lie elsewhere than in the prompt that they were stored with."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from lmcache_client import (
    COMMIT_RETRIEVE,
    EngineKey,
    LMCacheError,
    NoAnswerError,
    SlotDescriptor,
    encode_tokens,
)
from lmcache_client.blend import BLEND_COMMIT, BLEND_PREPARE, BlendSegment
from lmcache_vllm.metadata import BlendLoad, BlendLoaded, SegmentChain, kept_id
from lmcache_vllm.placement import Placement
from lmcache_vllm.transfer_load import load
from lmcache_vllm.transfer_registration import Registration
from lmcache_vllm.transfer_session import ServerSession
from lmcache_vllm.transfer_task import CancelledError, Outcome, TransferTask

if TYPE_CHECKING:  # it needs torch
    from lmcache_vllm.blend_pages import BlendPages

logger = logging.getLogger(__name__)


def load_blend(
    task: TransferTask, order: BlendLoad, session: ServerSession, placement: Placement, pages: BlendPages
) -> tuple[BlendLoaded, Outcome]:
    """Load the prefix and the segments of a blend; what became of them, and of the segments as one transfer. `task` is that of
    the prefix, and cancels both. Waits for the server; raises nothing because of it."""
    prefix = not task.chunks or not load(task, session, placement).failure
    key = _whole(task.key(placement), order)
    flags, outcome = _load_segments(task, _part(order, kept=False), key, session, pages)
    if order.kept:
        name = placement.key_name(task.transfer.variant, approximate=True)
        key = msgspec.structs.replace(key, model_name=name, request_id=kept_id(order.request_id))
        kept, more = _load_segments(task, _part(order, kept=True), key, session, pages)
        flags, outcome = flags | kept, Outcome(outcome.bytes + more.bytes, outcome.failure or more.failure)
    for each in order.chains:
        there, more = _load_chain(task, order, each, session, placement, pages)
        flags, outcome = flags | there, Outcome(outcome.bytes + more.bytes, outcome.failure or more.failure)
    return BlendLoaded(1, prefix, tuple(segment.start in flags for segment in order.segments)), outcome


def _part(order: BlendLoad, *, kept: bool) -> BlendLoad:
    """The same, of the segments that an earlier turn has left, or of the others but for chunks of chains."""
    return replace(
        order, segments=tuple(each for each in order.segments if each.hash and (each.start in order.kept) is kept)
    )


def _load_segments(
    task: TransferTask, order: BlendLoad, key: EngineKey, session: ServerSession, pages: BlendPages
) -> tuple[frozenset[int], Outcome]:
    """Where those begin that were loaded."""
    nothing: frozenset[int] = frozenset()
    if not order.segments:
        return nothing, Outcome()
    with session.use() as registration:
        if registration is None:
            return nothing, Outcome(failure="no_server")
        if registration.pages.chunk_tokens != task.transfer.chunk_tokens:
            return nothing, Outcome(failure="chunk_size")
        asked = time.monotonic()
        channel = registration.channel
        try:
            try:
                reply = channel.call(BLEND_PREPARE, key, order.segments, registration.instance_id)
                if reply.slots:  # a refusal may say that this worker is not known any more
                    registration.heard(asked)
                flags, outcome = _read(task, order, registration, reply.of(len(order.segments)), pages)
                return frozenset(
                    each.start for each, there in zip(order.segments, flags, strict=True) if there
                ), outcome
            finally:
                channel.tell(BLEND_COMMIT, key.request_id, registration.instance_id)
        except NoAnswerError as error:
            logger.warning("segments were not answered request=%s reason=%s", order.request_id, error)
            session.suspect(registration)
            return nothing, Outcome(failure="no_answer")
        except (LMCacheError, ValueError) as error:
            logger.error("segments could not be loaded request=%s reason=%s", order.request_id, error)
            return nothing, Outcome(failure="refused")
        except Exception:
            session.suspect(registration)  # a new registration gives back what this one has leased
            raise


def _load_chain(
    task: TransferTask,
    order: BlendLoad,
    chain: SegmentChain,
    session: ServerSession,
    placement: Placement,
    pages: BlendPages,
) -> tuple[frozenset[int], Outcome]:
    """Where those of its chunks begin that were loaded: all that are to be, or none."""
    nothing: frozenset[int] = frozenset()
    transfer = replace(chain.transfer, end=chain.found * chain.transfer.chunk_tokens)
    with session.use() as registration:
        if registration is None:
            return nothing, Outcome(failure="no_server")
        if registration.pages.chunk_tokens != transfer.chunk_tokens:
            return nothing, Outcome(failure="chunk_size")
        key, asked, channel = TransferTask(transfer).key(placement), time.monotonic(), registration.channel
        try:
            reply = channel.prepare_retrieve(key, registration.instance_id)
            try:
                slots = reply.context.slots
                if not reply.success or not isinstance(slots, tuple) or len(slots) != chain.found:
                    return nothing, Outcome(failure="missing")
                registration.heard(asked)
                moved = _read_chain(task, order, chain, registration.addresses(slots), pages)
                if registration.is_fenced:
                    return nothing, Outcome(failure="too_late")
                return chain.starts, Outcome(moved)
            finally:
                channel.tell(COMMIT_RETRIEVE, key, registration.instance_id)
        except CancelledError:
            return nothing, Outcome(failure="cancelled")
        except NoAnswerError as error:
            logger.warning("a document was not answered request=%s reason=%s", order.request_id, error)
            session.suspect(registration)
            return nothing, Outcome(failure="no_answer")
        except (LMCacheError, ValueError, OSError) as error:
            logger.error("a document could not be loaded request=%s reason=%s", order.request_id, error)
            return nothing, Outcome(failure="refused")
        except Exception:
            session.suspect(registration)  # a new registration gives back what this one has leased
            raise


def _read_chain(
    task: TransferTask, order: BlendLoad, chain: SegmentChain, addresses: Sequence[int], pages: BlendPages
) -> int:
    place, size = chain.transfer.segment, chain.transfer.chunk_tokens
    assert place is not None, "the transfer of a chain"
    moved = 0
    for at, address in enumerate(addresses):
        start = place.start + at * size
        if start in chain.starts and start < order.end:
            count = min(size, place.end - start, order.end - start)
            with task.touching():
                moved += pages.write(address, size, range(count), order.block_ids, start, place.start)
    return moved


def _whole(prefix: EngineKey, order: BlendLoad) -> EngineKey:
    """The prompt to the end of the last segment."""
    tokens = np.frombuffer(order.token_ids, np.int32).tolist()
    return msgspec.structs.replace(prefix, token_ids=encode_tokens(tokens), end=len(tokens))


def _read(
    task: TransferTask,
    order: BlendLoad,
    registration: Registration,
    slots: Sequence[SlotDescriptor | None],
    pages: BlendPages,
) -> tuple[tuple[bool, ...], Outcome]:
    """One segment after the other; those that are not there, and those that fail, are left out."""
    chunk_tokens = registration.pages.chunk_tokens
    flags, moved, failure = [], 0, ""
    for segment, slot in zip(order.segments, slots, strict=True):
        loaded = False
        if slot is None:
            failure = failure or "missing"
        elif failure != "cancelled":
            try:
                (address,) = registration.addresses([slot])
                tokens = _rows(segment, order.end, chunk_tokens)
                with task.touching():
                    moved += pages.write(
                        address, chunk_tokens, tokens, order.block_ids, segment.start, segment.start - segment.old_start
                    )
                loaded = True
            except CancelledError:
                failure = "cancelled"
            except (ValueError, OSError) as error:
                if failure != "copy":  # one line for all of them
                    logger.error("a segment could not be copied request=%s reason=%s", order.request_id, error)
                failure = "copy"
        flags.append(loaded)
    if registration.is_fenced:
        # The server may have taken this worker for dead, and given the slots to others while they were read.
        return (False,) * len(flags), Outcome(0, "too_late")
    return tuple(flags), Outcome(moved, failure)


def _rows(segment: BlendSegment, end: int, chunk_tokens: int) -> range:
    """The rows of its chunk that are to be written: tokens at `end` and behind are not. Raises ValueError for a segment that
    is not of one chunk."""
    count = segment.end - segment.start
    first = segment.old_start % chunk_tokens
    if not 0 < count == segment.old_end - segment.old_start <= chunk_tokens - first or segment.start >= end:
        raise ValueError(f"the segment {segment} does not fit a chunk of {chunk_tokens} tokens")
    return range(first, first + min(count, end - segment.start))
