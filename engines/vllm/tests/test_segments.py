"""Documents of a prompt: where they are cut, when they are stored and found, and which bytes they have."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.server_process import ServerProcess
from engines.vllm.tests.scheduler_rig import CHUNK, SETTINGS, TABLE, Rig
from engines.vllm.tests.test_worker_transfers import OPTIONS
from engines.vllm.tests.worker_kit import BLOCK_TOKENS, CHUNK_TOKENS, WIDTH, Paged, fused_hnd, rig, transfer
from lmcache_client import encode_tokens
from lmcache_client.blend import BlendSegment
from lmcache_client.engine_key import PADDING
from lmcache_kv_layout import ChunkRows, Rotary
from lmcache_vllm.blend_choice import BlendChoice
from lmcache_vllm.blend_load import load_blend
from lmcache_vllm.blend_separator import separator_tokens
from lmcache_vllm.blend_store import SegmentGather
from lmcache_vllm.kv_caches import KVCaches
from lmcache_vllm.metadata import BlendLoad, SegmentPlace, Transfer
from lmcache_vllm.request_facts import RequestFacts
from lmcache_vllm.segments import SEGMENTS_MAX, VARIANT, cut, with_chains
from lmcache_vllm.settings import Settings
from lmcache_vllm.transfer_pages import ChunkPages, HostCopier
from lmcache_vllm.transfer_task import TransferTask

# Where prompts are cut


@pytest.mark.parametrize(
    ("prompt", "segments"),
    [
        ("", []),
        ("abc", [range(3)]),
        ("abc|", [range(3)]),
        ("abc|d", [range(3)]),
        ("|abc|d", [range(1, 4)]),
        ("a|bc||d|", [range(1), range(2, 4), range(6, 7)]),
        ("|d", []),
    ],
)
def test_the_question_is_not_a_document(prompt: str, segments: list[range]) -> None:
    assert cut([ord(each) for each in prompt], [ord("|")]) == tuple(segments)


def test_without_a_separator_nothing_is_cut() -> None:
    assert cut([1, 2, 3], ()) == ()
    assert len(cut([1, 2] * 500, [2])) == SEGMENTS_MAX


def chained(start: int, tokens: int, *, approximate: bool = True) -> Transfer:
    end = tokens + -tokens % CHUNK
    return Transfer(0, f"r{start}", b"", 0, end, CHUNK, ((),), "", None, "", approximate, SegmentPlace(start, tokens))


spans = st.lists(st.integers(1, 20), max_size=8).map(lambda steps: np.cumsum([0, *steps]).tolist())


@given(
    bounds=spans, documents=spans, prefix=st.integers(0, 40), hits=st.lists(st.integers(0, 4), min_size=8, max_size=8)
)
def test_chunks_of_documents_fill_what_is_free(
    bounds: list[int], documents: list[int], prefix: int, hits: list[int]
) -> None:
    given_segments = tuple(
        BlendSegment(
            0, min(end - start, CHUNK), start, start + min(end - start, CHUNK), b"x", start % 2 == 0, start % 3 == 0
        )
        for start, end in zip(bounds[::2], bounds[1::2], strict=False)
        if start >= prefix
    )
    chains = [
        (chained(start, end - start), found) for start, end, found in zip(documents, documents[1:], hits, strict=False)
    ]
    segments, used = with_chains(given_segments, prefix, chains)
    assert {each for each in given_segments if each.exact} <= set(segments)
    for before, behind in pairwise(segments):
        assert before.end <= behind.start
    taken = {each.start: each for each in segments if each.hash}
    for prior, each in zip((None, *given_segments), given_segments, strict=False):
        if each.start not in taken:
            assert any(other.start < each.end and each.start < other.end for other in segments if not other.hash)
        elif taken[each.start].follows:
            assert each.exact or (prior is not None and prior.end == each.start and prior.start in taken)
    own = {each.start: each for each in segments if not each.hash}
    assert sorted(own) == sorted(start for chain in used for start in chain.starts)
    for chain in used:
        place = chain.transfer.segment
        assert place is not None
        for start in chain.starts:
            at, rest = divmod(start - place.start, CHUNK)
            assert (rest, at < chain.found) == (0, True)
            each = own[start]
            assert (each.end, each.old_start) == (min(start + CHUNK, place.end), at * CHUNK)
            assert each.follows == (start - CHUNK in chain.starts)
            assert start >= prefix


def test_a_document_that_is_there_as_a_whole_is_not_taken_in_pieces() -> None:
    piece, behind = BlendSegment(8, 16, 3, 11, b"p"), BlendSegment(16, 24, 11, 19, b"q", follows=True)
    segments, _ = with_chains((piece, behind), 0, [(chained(0, 10), 2)])
    assert [(each.start, each.end, each.follows) for each in segments] == [
        (0, 8, False),
        (8, 10, True),
        (11, 19, False),
    ]


def test_of_two_chains_for_one_document_the_first_wins() -> None:
    exact, seen = chained(0, 20, approximate=False), chained(0, 20)
    segments, used = with_chains((), 0, [(exact, 1), (seen, 3)])
    assert [(each.start, each.end, each.exact) for each in segments] == [(0, 8, True), (8, 16, False), (16, 20, False)]
    assert [chain.starts for chain in used] == [{0}, {8, 16}]


# When they are stored and found

END = 99
DOCUMENT = list(range(50, 61))
CHOICE = BlendChoice("lego_link", (0.15,), asked=True)
PROMPT = RequestFacts("r", [1, 2, 3, END, *DOCUMENT, END, 7, 8], 18, blend=CHOICE)
BLENDING = replace(SETTINGS, blend="all", blend_min_tokens=4)


def scheduling(**given: Any) -> Rig:
    return Rig(BLENDING, blends=True, separator=(END,), **given)


def stored(rig: Rig, facts: RequestFacts = PROMPT, *, cut_at: int = 18) -> list[Transfer]:
    rig.side.on_new_request(facts)
    assert rig.side.matched_tokens(facts.request_id, 0) == (0, False)
    rig.side.on_allocated(facts.request_id, TABLE, 0)
    stores = [*rig.step(0, cut_at, facts.request_id).stores]
    if cut_at < len(facts.tokens):
        stores += rig.step(cut_at, len(facts.tokens) - cut_at, facts.request_id).stores
    return stores


@pytest.mark.parametrize("cut_at", [18, 14, 15])
def test_a_document_is_stored_once_it_is_there_as_a_whole(cut_at: int) -> None:
    first, document = [each for each in stored(scheduling(), cut_at=cut_at) if each.segment]
    assert (first.segment, first.approximate, first.variant) == (SegmentPlace(0, 3), False, "")
    assert (document.segment, document.approximate, document.variant) == (SegmentPlace(4, 11), True, VARIANT)
    assert msgspec.msgpack.decode(document.tokens) == DOCUMENT + [PADDING] * 5
    assert (document.start, document.end, document.request_id) == (0, 16, "r")
    assert document.block_ids == (tuple(TABLE[0][1:4]),), "blocks of four tokens: those of tokens 4 to 15"


def test_who_does_not_blend_stores_and_asks_for_no_document() -> None:
    rig = scheduling()
    assert not [each for each in stored(rig, replace(PROMPT, blend=None)) if each.segment]
    assert not [key for key in rig.server.keys if "##" in key.request_id]


def test_whole_chunks_at_the_start_of_a_prompt_are_stored_as_its_prefix() -> None:
    alone = replace(PROMPT, tokens=list(range(50, 66)), prompt_tokens=16)
    (store,) = stored(scheduling(), alone, cut_at=16)
    assert store.segment is None


@pytest.mark.parametrize("whole", [True, False])
def test_what_was_found_as_a_whole_is_not_stored_again(whole: bool) -> None:
    rig = scheduling()
    rig.store(RequestFacts("d", DOCUMENT, 8), 8)
    if whole:
        rig.server.objects["", *DOCUMENT, *[PADDING] * 5] = ()
    rig.side.on_new_request(PROMPT)
    rig.side.matched_tokens("r", 0)
    rig.side.on_allocated("r", TABLE, 0)
    stored_again = [] if whole else [SegmentPlace(4, 11)]
    assert [each.segment for each in rig.step(0, 18).stores if each.segment] == [SegmentPlace(0, 3), *stored_again]


@pytest.mark.parametrize(("space", "names"), [("", 1), (f"##blend%%{VARIANT}", 1)])
def test_a_document_is_loaded_as_a_chain_of_its_own(space: str, names: int) -> None:
    rig = scheduling()
    rig.server.indexes = False
    rig.server.objects[space, *DOCUMENT[:8]] = ()
    rig.server.objects[space, *DOCUMENT, *[PADDING] * 5] = ()
    (load,) = rig.load(PROMPT).blend_loads
    assert [(each.old_start, each.start, each.end, each.follows) for each in load.segments] == [
        (0, 4, 12, False),
        (8, 12, 15, True),
    ]
    (chain,) = load.chains
    assert (chain.found, chain.starts, chain.transfer.approximate) == (2, frozenset({4, 12}), bool(space))
    asked = {key.request_id: key.model_name for key in rig.server.keys}
    assert asked[chain.transfer.request_id] == ("model" + space if space else "model")
    assert list(array("i", load.token_ids)) == PROMPT.tokens[:15]


@pytest.mark.parametrize("ends", ["r", "r##alone4"])
def test_all_answers_are_waited_for_and_an_abort_ends_all(ends: str) -> None:
    rig = scheduling(at_once=False)
    rig.side.on_new_request(PROMPT)
    assert len(rig.server.pending) == 5
    rig.server.answer(ends)
    assert rig.side.matched_tokens("r", 0) == (None, False)
    rig.side.on_finished("r")
    assert not rig.server.holds_anything()


def test_chains_that_are_not_needed_are_released_at_once() -> None:
    rig = scheduling()
    rig.store(RequestFacts("d", DOCUMENT, 8), 8)
    rig.server.objects[f"##blend%%{VARIANT}", *DOCUMENT[:8]] = ()
    rig.side.on_new_request(PROMPT)
    rig.side.matched_tokens("r", 0)
    assert not rig.server.holds.get("r##seen4")
    assert rig.server.holds.get("r##alone4")
    rig.side.on_finished("r")
    assert not rig.server.holds_anything()


# The separator


class Tokenizer:
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(each) for each in text if each != "~"]


@pytest.mark.parametrize(("separator", "tokens"), [("", ()), ((5, 6), (5, 6)), ("##", (35, 35))])
def test_a_text_is_turned_into_tokens(separator: Any, tokens: Sequence[int]) -> None:
    assert separator_tokens(Settings(blend_special_str=separator), None, lambda _: Tokenizer()) == tokens


def test_a_text_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="has no tokenizer: give it as a list of token ids"):
        separator_tokens(Settings(blend_special_str="#"), None, lambda _: None)
    with pytest.raises(ValueError, match="makes no tokens"):
        separator_tokens(Settings(blend_special_str="~"), None, lambda _: Tokenizer())


# Which bytes they have


POSITIONS = 400


def rotary() -> Rotary:
    angles = np.outer(np.arange(POSITIONS), 100.0 ** (-np.arange(0, WIDTH, 2) / WIDTH))
    return Rotary(np.concatenate([np.cos(angles), np.sin(angles)], axis=1), "neox")


class Rows:
    """As `BlendPages`, of pages that have their elements in the order of slots."""

    block_tokens = BLOCK_TOKENS

    def __init__(self, caches: KVCaches) -> None:
        (self._group,) = caches.groups
        self._rows = ChunkRows(replace(self._group.paged, block_slots=0), rotary(), WIDTH, CHUNK_TOKENS)

    def write(self, chunk: int, chunk_tokens: int, tokens: range, blocks: Any, target: int, delta: int) -> int:
        return self._rows.read(self._group.bases, blocks, chunk, tokens, target, delta)

    def gather(self, chunk: int, chunk_tokens: int, tokens: range, blocks: Any, source: int, delta: int) -> int:
        return self._rows.write(self._group.bases, blocks, chunk, tokens, source, delta)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(OPTIONS, tmp_path_factory.mktemp("server") / "log") as process:
        yield process


def rows_of(paged: Paged, blocks: Sequence[int]) -> Any:
    """`[layer][token][head][element]`."""
    found = np.stack([pages[list(blocks)] for pages in paged.pages.values()])
    return found.transpose(0, 1, 3, 2, 4).reshape(len(found), -1, found.shape[2], 2 * WIDTH)


def turned(rows: Any, delta: int) -> Any:
    cos, sin = rotary().turn(delta)
    half = WIDTH // 2
    found = rows.copy()
    found[..., :half] = rows[..., :half] * cos - rows[..., half:WIDTH] * sin
    found[..., half:WIDTH] = rows[..., half:WIDTH] * cos + rows[..., :half] * sin
    return found


@pytest.mark.parametrize(("start", "tokens"), [(5, 37), (0, 40), (16, 32), (47, 9)])
def test_a_document_is_stored_out_of_its_prompt_and_loaded_into_another(
    server: ServerProcess, start: int, tokens: int
) -> None:
    paged, size = fused_hnd(), CHUNK_TOKENS
    document = list(range(1000 * start, 1000 * start + tokens))
    padded = [*document, *[PADDING] * (-tokens % size)]
    place = SegmentPlace(start, tokens)
    blocks = [9, 4, 30, 2, 17, 25]
    with rig(server.port, paged) as worker:
        caches: Any = worker.side._caches
        pages: Any = Rows(caches)
        worker.side._blending = SimpleNamespace(pages=pages)  # type: ignore[assignment]
        before = rows_of(paged, blocks)[:, start : place.end]
        own = blocks[start // BLOCK_TOKENS : -(-place.end // BLOCK_TOKENS)]
        encoded = bytes(encode_tokens(padded))
        name: dict[str, Any] = {"variant": VARIANT if start else "", "approximate": start > 0}
        chained = Transfer(77, "r", encoded, 0, len(padded), size, (tuple(own),), segment=place, **name)
        worker.store(chained)
        assert worker.counts["stores"] == 1

        # As a prefix: the document's own positions, and zeros behind it.
        paged.wipe()
        alone = list(range(len(padded) // BLOCK_TOKENS))
        worker.load(replace(transfer(padded, [[each + 1 for each in alone]], end=len(padded)), **name))
        found = rows_of(paged, [each + 1 for each in alone])
        np.testing.assert_allclose(found[:, :tokens], turned(before, -start), rtol=1e-5, atol=1e-4)
        np.testing.assert_array_equal(found[:, :tokens, :, WIDTH:], before[..., WIDTH:])
        assert not found[:, tokens:].any()

        # Into another prompt.
        paged.wipe()
        target, elsewhere = 21, [11, 3, 8, 31, 12]
        nothing = Transfer(76, "r", b"\x90", 0, 0, size, ((),))
        segments, chains = with_chains((), 0, [(replace(chained, segment=SegmentPlace(target, tokens)), 9)])
        end = target + tokens - 1
        order = BlendLoad(nothing, segments, end, tuple(elsewhere), b"", "full", (0.1,), chains=chains)
        loaded, outcome = load_blend(TransferTask(nothing), order, worker.side._session, worker.side._placement, pages)
        assert (all(loaded.segments), outcome.failure) == (True, "")
        found = rows_of(paged, elsewhere)
        np.testing.assert_allclose(found[:, target:end], turned(before, target - start)[:, :-1], rtol=1e-5, atol=2e-4)
        assert not found[:, :target].any()
        assert not found[:, end:].any()


def test_nothing_old_is_behind_the_end_of_a_document() -> None:
    paged = fused_hnd()
    pages = ChunkPages(KVCaches(paged.tensors, paged.groups, "HND"), CHUNK_TOKENS, HostCopier())
    rows: Any = Rows(KVCaches(paged.tensors, paged.groups, "HND"))
    chunk = np.full(pages.payload_bytes, 0xA5, np.uint8)
    gather = SegmentGather(SegmentPlace(5, CHUNK_TOKENS + 3), rows, pages)
    assert gather([[3, 1, 2]], [1], [chunk.ctypes.data]) == 3 * pages.payload_bytes // CHUNK_TOKENS
    by_row = chunk.reshape(len(paged.tensors), CHUNK_TOKENS, -1)
    assert by_row[:, :3].any()
    assert not by_row[:, 3:].any()


def test_a_document_that_has_gone_is_a_gap(server: ServerProcess) -> None:
    paged = fused_hnd()
    with rig(server.port, paged) as worker:
        caches: Any = worker.side._caches
        pages: Any = Rows(caches)
        nothing = Transfer(78, "g", b"\x90", 0, 0, CHUNK_TOKENS, ((),))
        encoded = bytes(encode_tokens([3] * CHUNK_TOKENS))
        absent = replace(nothing, tokens=encoded, end=CHUNK_TOKENS, segment=SegmentPlace(4, CHUNK_TOKENS))
        segments, chains = with_chains((), 0, [(absent, 1)])
        order = BlendLoad(nothing, segments, 30, (1, 2), b"", "full", (0.1,), chains=chains)
        loaded, outcome = load_blend(TransferTask(nothing), order, worker.side._session, worker.side._placement, pages)
        assert (loaded.segments, outcome.failure) == ((False,), "missing")


def test_a_worker_that_does_not_blend_stores_no_document(server: ServerProcess) -> None:
    with rig(server.port, fused_hnd()) as worker:
        encoded = bytes(encode_tokens([4] * CHUNK_TOKENS))
        worker.store(Transfer(79, "n", encoded, 0, CHUNK_TOKENS, CHUNK_TOKENS, ((1, 2),), segment=SegmentPlace(0, 32)))
        assert worker.counts["failed_stores:no_blending"] == 1
