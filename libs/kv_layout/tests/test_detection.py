"""Which format a registration has, and what is refused."""

from __future__ import annotations

import pytest

from lmcache_kv_layout import (
    LAYERS_MAX,
    EngineGroup,
    EngineKVFormat,
    LayoutError,
    LayoutHints,
    TensorView,
    detect_groups,
    object_layout,
)
from lmcache_kv_layout.limits import PLANES_MAX

F = EngineKVFormat
HND, NHD, NONE = LayoutHints(kv_layout="HND"), LayoutHints(kv_layout="NHD"), LayoutHints()


def view(*shape: int, dtype: str = "bfloat16", stride: tuple[int, ...] | None = None, offset: int = 0) -> TensorView:
    contiguous = []
    step = 1
    for size in reversed(shape):
        contiguous.append(step)
        step *= size
    return TensorView(dtype, shape, stride or tuple(reversed(contiguous)), offset)


def transposed(source: TensorView, *order: int) -> TensorView:
    shape, stride = (tuple(values[dim] for dim in order) for values in (source.shape, source.stride))
    return TensorView(source.dtype, shape, stride, source.storage_offset)


@pytest.mark.parametrize(
    ("tensor", "hints", "device", "format"),
    [
        (view(9, 4, 16, 32), HND, "cuda", F.NL_X_NB_NH_BS_CS),
        (view(9, 16, 4, 32), NHD, "cpu", F.NL_X_NB_BS_NH_CS),
        (view(9, 4, 16, 32), NONE, "cpu", F.NL_X_NB_NH_BS_CS),
        (view(9, 16, 4, 32), NONE, "cuda", F.NL_X_NB_BS_NH_CS),
        (view(9, 4, 16, 32), LayoutHints(kv_layout="BLHNC"), "cuda", F.NL_X_NB_NH_BS_CS),
        (view(9, 16, 4, 32), LayoutHints(kv_layout="BLNHC"), "cpu", F.NL_X_NB_BS_NH_CS),
        (view(2, 9, 16, 4, 32), NHD, "cuda", F.NL_X_TWO_NB_BS_NH_HS),
        (view(2, 9, 4, 16, 32), HND, "cuda", F.NL_X_TWO_NB_NH_BS_HS),
        (view(9, 2, 16, 4, 32), NHD, "cuda", F.NL_X_NB_TWO_BS_NH_HS),
        (view(9, 2, 4, 16, 32), HND, "cuda", F.NL_X_NB_TWO_NH_BS_HS),
        (view(9, 2, 16, 2, 32), NHD, "cuda", F.NL_X_NB_TWO_BS_NH_HS),
        (view(9, 4, 16, 2, 32), HND, "cuda", F.NL_X_NB_NH_BS_TWO_HS),
        (view(9, 16, 4, 2, 32), NHD, "cuda", F.NL_X_NB_BS_NH_TWO_HS),
        (view(9, 16, 576), NHD, "cuda", F.NL_X_NB_BS_HS),
        (view(9, 16, 132, dtype="uint8"), NHD, "cuda", F.NL_X_NB_BSV_BSS),
        (view(9, 16, 1, 132, dtype="uint8"), NHD, "cuda", F.NL_X_NB_BSV_BSS),
        (view(9, 1, 16, 132, dtype="uint8"), HND, "cuda", F.NL_X_NB_BSV_BSS),
        (view(9, 16, 132, dtype="int8"), NHD, "cuda", F.NL_X_NB_BS_HS),
        (view(2, 9, 4, 1, 16, 32), NONE, "cpu", F.NL_X_TWO_NB_NH_ONE_BS_HS),
        (view(9, 3, 2, 16, 4, 32), NONE, "cpu", F.NB_NL_TWO_BS_NH_HS),
        (view(9, 3, 2, 4, 16, 32), HND, "cpu", F.NB_NL_TWO_NH_BS_HS),
    ],
)
def test_formats_of_vllm(tensor: TensorView, hints: LayoutHints, device: str, format: EngineKVFormat) -> None:
    (group,) = detect_groups([tensor], hints, device=device)
    assert group.format is format
    if format not in (F.NL_X_NB_BSV_BSS, F.NL_X_NB_BS_HS):
        assert (group.slots_per_block, group.heads) == (16, 2 if tensor.shape[1:4] == (2, 16, 2) else 4)
    assert group.blocks == 9


@pytest.mark.parametrize(
    ("tensors", "hints", "format", "layers"),
    [
        ([view(64, 4, 32)] * 6, LayoutHints(kv_list_layout="k_v", tokens_per_block=16), F.TWO_X_NL_X_NBBS_NH_HS, 3),
        ([view(64, 1, 32)] * 6, LayoutHints(kv_list_layout="k_v", tokens_per_block=16), F.TWO_X_NL_X_NBBS_NH_HS, 3),
        ([view(4, 16, 4, 32)] * 6, LayoutHints(kv_list_layout="k_v"), F.TWO_X_NL_X_NB_BS_NH_HS, 3),
        ([view(64, 1, 32)] * 3, LayoutHints(tokens_per_block=16), F.NL_X_NBBS_ONE_HS, 3),
        ([view(4, 16, 32)] * 3, LayoutHints(kv_list_layout="unified"), F.NL_X_NB_BS_HS, 3),
        ([view(4, 16, 4, 32)] * 3, LayoutHints(kv_list_layout="unified"), F.NL_X_NB_BS_NH_HS, 3),
    ],
)
def test_formats_of_sglang(tensors: list[TensorView], hints: LayoutHints, format: EngineKVFormat, layers: int) -> None:
    (group,) = detect_groups(tensors, hints, device="cuda", engine="sglang")
    assert (group.format, group.layers, group.blocks, group.slots_per_block) == (format, layers, 4, 16)


def test_the_folded_pool_of_trtllm_is_parted_by_hints() -> None:
    hints = LayoutHints(num_kv_heads=4, tokens_per_block=16, head_dim=32)
    (folded,) = detect_groups([view(9, 3, 2, 4 * 16 * 32)], hints, engine="trtllm")
    (plain,) = detect_groups([view(9, 3, 2, 4, 16, 32)], LayoutHints(), engine="trtllm")
    assert folded == plain
    assert (folded.format, folded.layers, folded.slots_per_block) == (F.NB_NL_TWO_NH_BS_HS, 3, 16)


def test_chunks_of_host_pages_depend_on_the_block_size_and_those_of_a_gpu_do_not() -> None:
    def layout(slots: int, device: str) -> bytes:
        return object_layout(detect_groups([view(9, 4, slots, 64)], HND, device=device), 64).fingerprint

    assert layout(16, "cuda") == layout(32, "cuda")
    assert len({layout(16, "cuda"), layout(16, "cpu"), layout(32, "cpu")}) == 3


def test_layers_of_two_tensors() -> None:
    (group,) = detect_groups([(view(9, 16, 4, 32), view(9, 16, 4, 32))] * 3, NHD)
    assert (group.format, group.kv_axis, group.layers) == (F.NL_X_TWO_X_NB_BS_NH_HS, 2, 3)


@pytest.mark.parametrize("planes", [1, 3])
def test_equal_planes_are_layers(planes: int) -> None:
    (group,) = detect_groups([(view(9, 16, 1, 32),) * planes] * 2, NHD)
    assert (group.format, group.kv_axis, group.layers) == (F.NL_X_NP_X_NB_BS_ONE_HS, 1, 2 * planes)


@pytest.mark.parametrize("kv_layout", ["HND", "NHD"])
@pytest.mark.parametrize("heads", [1, 4])
def test_the_order_in_memory_counts_not_the_order_that_is_shown(kv_layout: str, heads: int) -> None:
    inner = (heads, 16) if kv_layout == "HND" else (16, heads)
    plain = view(2, 9, *inner, 32)
    hints = LayoutHints(kv_layout=kv_layout)
    shown = transposed(plain, 0, 1, 3, 2, 4)
    assert detect_groups([shown], hints) == detect_groups([plain], hints)
    assert detect_groups([plain], hints)[0].heads == heads


@pytest.mark.parametrize(
    "tensor",
    [
        view(9, 1, 16, 32, stride=(600, 512, 32, 1)),
        view(9, 4, 1, 32, stride=(128, 32, 32, 1)),
        view(9, 4, 1, 32, stride=(999, 32, 32, 1)),
    ],
)
def test_pages_of_one_head_or_one_slot_are_copied_as_runs(tensor: TensorView) -> None:
    (group,) = detect_groups([tensor], HND)
    assert group.token_major


def test_a_single_block_is_a_page_long() -> None:
    (group,) = detect_groups([view(1, 4, 16, 32, stride=(2**40, 512, 32, 1))], HND)
    assert group.block_stride == 4 * 16 * 32 * 2


def test_blocks_may_lie_apart() -> None:
    padded = view(9, 4, 16, 32, stride=(4 * 16 * 32 + 64, 16 * 32, 32, 1), offset=5)
    (group,) = detect_groups([padded], HND)
    assert group.block_stride == 2 * (4 * 16 * 32 + 64)
    assert group.bases == ((0, 10),)


def test_a_compressed_page_holds_more_tokens_than_slots() -> None:
    (group,) = detect_groups([view(9, 4, 16, 32)], HND, [EngineGroup(0, tokens_per_block=64)])
    assert (group.tokens_per_block, group.slots_per_block) == (64, 16)
    assert (group.blocks_per_chunk(256), group.slots_per_chunk(256)) == (4, 64)
    assert group.skip_slots(130) == 32


def test_groups_are_taken_in_the_order_of_the_list_and_other_layers_left_out() -> None:
    tensors = [view(9, 4, 16, 32), view(2, 3), view(9, 2, 16, 32), view(9, 4, 16, 32)]
    groups = [
        EngineGroup(1, (2,), sw_size_tokens=128),
        EngineGroup(0, (0, 3), extra_object_group_tag=7, recurrent_state=True),
    ]
    first, second = detect_groups(tensors, HND, groups)
    assert (first.heads, first.layers, first.window_tokens, first.engine_group_id) == (2, 1, 128, 1)
    assert (second.heads, second.layers, second.window_tokens) == (4, 2, -1)
    assert (second.object_group_tag, second.recurrent) == (7, True)


@pytest.mark.parametrize("indices", [(), (0,), (0, 1, 2)])
def test_the_layers_of_one_tensor_may_be_listed_or_not(indices: tuple[int, ...]) -> None:
    (group,) = detect_groups([view(9, 3, 2, 16, 4, 32)], NHD, [EngineGroup(0, indices)])
    assert group.layers == 3
    step = 2 * 16 * 4 * 32 * 2
    assert [offset for _, offset in group.bases] == [
        0,
        step,
        2 * step,
        step // 2,
        step + step // 2,
        2 * step + step // 2,
    ]


REFUSED = [
    ([view(2, 2, 16, 4, 32)], NHD, (), "vllm", "tensor 0: .*more than two"),
    ([view(2, 3, 2, 1, 4, 32)], NHD, (), "vllm", "one tensor of two blocks"),
    ([view(9, 3, 16, 4, 32)], NHD, (), "vllm", "not a known layout of pages"),
    ([view(9, 32)], NHD, (), "vllm", "not a known layout of pages"),
    ([view(9, 3, 3, 16, 4, 32)], NHD, (), "vllm", "tensor 0: .*not of the format NB_NL_TWO"),
    ([view(9, LAYERS_MAX + 1, 2, 1, 1, 1)], NHD, (), "vllm", f"limit is {LAYERS_MAX}"),
    ([view(9, 4, 16, 32)] * (LAYERS_MAX + 1), HND, (), "vllm", f"1 to {LAYERS_MAX}"),
    ([], HND, (), "vllm", "0 tensors"),
    ([view(9, 4, 16, 32), view(9, 4, 16, 64)], HND, (), "vllm", "group 0 mixes layers: tensor 1"),
    ([view(9, 4, 16, 32), view(8, 4, 16, 32)], HND, (), "vllm", "group 0 mixes layers: tensor 1"),
    ([view(9, 4, 16, 32), view(9, 4, 16, 32, dtype="float16")], HND, (), "vllm", "group 0 mixes layers"),
    ([view(9, 4, 16, 32)], HND, [EngineGroup(0, (1,))], "vllm", "layer 1, which was not registered"),
    ([view(9, 4, 16, 32)], HND, [EngineGroup(0, (-1,))], "vllm", "layer -1"),
    ([view(9, 4, 16, 32)], HND, [EngineGroup(0, (LAYERS_MAX,))], "vllm", "layers count from 0"),
    (
        [view(9, 4, 16, 32)],
        HND,
        [EngineGroup(0, (0,)), EngineGroup(1, (0,))],
        "vllm",
        "layer 0 is in group 0 and in group 1",
    ),
    ([view(9, 4, 16, 32)] * 2, HND, [EngineGroup(0, (0,)), EngineGroup(0, (1,))], "vllm", "must be one"),
    ([view(9, 4, 16, 32)] * 2, HND, [EngineGroup(0, (0,)), EngineGroup(1)], "vllm", "group 1 lists no layers"),
    ([view(9, 4, 16, 32)], HND, [EngineGroup(n, (0,)) for n in range(65)], "vllm", "limit is 64"),
    ([view(9, 4, 16, 32)], HND, [EngineGroup(0, tokens_per_block=24)], "vllm", "not a multiple"),
    ([view(9, 4, 16, 32)], HND, [EngineGroup(0, tokens_per_block=8)], "vllm", "not a multiple"),
    ([view(9, 16, 132, dtype="uint8")], HND, [EngineGroup(0, tokens_per_block=24)], "vllm", "not a multiple"),
    ([view(9, 4, 16, 32)], HND, (), "atom", "engine 'atom'"),
    ([view(9, 4, 16, 32, stride=(0, 512, 32, 1))], HND, (), "vllm", "innermost"),
    ([view(9, 4, 16, 32, stride=(2048, 32, 32, 1))], HND, (), "vllm", "overlap"),
    ([view(9, 4, 16, 32, stride=(2000, 512, 32, 1))], HND, (), "vllm", "overlap"),
    ([view(9, 4, 16, 32, stride=(2047, 512, 32, 1))], HND, (), "vllm", "overlap"),
    ([view(9, 4, 16, 32, stride=(4096, 1024, 64, 2))], HND, (), "vllm", "not contiguous"),
    ([view(9, 4, 16, 2, 16, stride=(4096, 1024, 64, 32, 1))], HND, (), "vllm", "not contiguous"),
    (
        [view(9, 1, 16, 32, stride=(512, 0, 32, 1))],
        HND,
        (),
        "vllm",
        "tensor 0: .*last dimension shown is not the innermost",
    ),
    (
        [view(9, 1, 16, 32, stride=(512, 1, 32, 1))],
        HND,
        (),
        "vllm",
        "tensor 0: .*last dimension shown is not the innermost",
    ),
    ([view(9, 32, 16, 4, stride=(2048, 1, 32, 512))], NHD, (), "vllm", "last dimension shown is not the innermost"),
    ([view(9, 16, 132, dtype="uint8", stride=(4096, 140, 1))], HND, (), "vllm", "values and scales is not contiguous"),
    ([()], HND, (), "vllm", "layer of 0 tensors"),
    ([(view(9, 16, 1, 32),) * (PLANES_MAX + 1)], HND, (), "vllm", f"1 to {PLANES_MAX}"),
    ([(view(9, 16, 32),)], HND, (), "vllm", "four dimensions"),
    ([(view(9, 16, 1, 32), view(9, 16, 1, 8))], HND, (), "vllm", "differ in width"),
    ([(view(9, 16, 1, 32),) * 2 + (view(9, 16, 1, 8),)], HND, (), "vllm", "differ in width"),
    ([(view(9, 16, 2, 32),) * 3], HND, (), "vllm", "not of the format NL_X_NP"),
    ([(view(9, 16, 4, 32), view(9, 16, 4, 32, dtype="float16"))], HND, (), "vllm", "K and V tensors of a layer differ"),
    ([view(64, 4, 32)] * 2, LayoutHints(kv_list_layout="k_v"), (), "sglang", "tensors?_per_block|tokens_per_block"),
    ([view(64, 1, 32)] * 2, LayoutHints(), (), "sglang", "tokens_per_block"),
    ([view(65, 1, 32)] * 2, LayoutHints(tokens_per_block=16), (), "sglang", "65 slots are not whole blocks"),
    ([view(64, 4, 32)] * 2, LayoutHints(tokens_per_block=16), (), "sglang", "kv_list_layout"),
    ([view(64, 4, 32)] * 3, LayoutHints(kv_list_layout="k_v", tokens_per_block=16), (), "sglang", "as many K as V"),
    ([view(64, 4)] * 2, LayoutHints(kv_list_layout="k_v", tokens_per_block=16), (), "sglang", "three or four"),
    ([view(64, 4)] * 2, LayoutHints(kv_list_layout="unified"), (), "sglang", "three or four"),
    (
        [view(64, 1, 32)],
        LayoutHints(kv_list_layout="unified", tokens_per_block=16),
        (),
        "sglang",
        "tensor 0: .*pages of 1 tokens; the hint tokens_per_block is 16",
    ),
    ([view(64, 4, 32), view(4, 16, 4, 32)], LayoutHints(kv_list_layout="unified"), (), "sglang", "dimensions in one"),
    ([(view(9, 16, 4, 32),)], LayoutHints(), (), "sglang", "plain tensors"),
    ([view(9, 3, 2, 2048)], LayoutHints(num_kv_heads=4), (), "trtllm", "num_kv_heads, tokens_per_block and head_dim"),
    ([view(9, 3, 2, 2049)], LayoutHints(num_kv_heads=4, tokens_per_block=16, head_dim=32), (), "trtllm", "not 4 heads"),
    ([view(9, 3, 2, 4, 16, 32)] * 2, LayoutHints(), (), "trtllm", "one pool"),
    ([view(9, 3, 2, 4, 16)], LayoutHints(), (), "trtllm", "has 5 dimensions"),
]


@pytest.mark.parametrize(
    ("tensors", "hints", "groups", "engine", "reason"), REFUSED, ids=[case[4][:40] for case in REFUSED]
)
def test_what_is_not_understood_is_refused_with_the_reason(
    tensors: list[TensorView], hints: LayoutHints, groups: list[EngineGroup], engine: str, reason: str
) -> None:
    with pytest.raises(LayoutError, match=reason):
        detect_groups(tensors, hints, groups, engine=engine)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: TensorView("complex64", (1,), (1,)), "dtype 'complex64'"),
        (lambda: TensorView("uint8", (1, 2), (1,)), "2 sizes and 1 strides"),
        (lambda: TensorView("uint8", (), ()), "0 dimensions"),
        (lambda: TensorView("uint8", (1,) * 9, (1,) * 9), "9 dimensions"),
        (lambda: TensorView("uint8", (4, 0), (1, 1)), "size below 1"),
        (lambda: TensorView("uint8", (4, 2), (-1, 1)), "negative"),
        (lambda: TensorView("uint8", (4, 2), (2, 1), -1), "negative"),
        (lambda: TensorView("uint8", (2**40, 2**40), (2**40, 1)), "limit is"),
        (lambda: LayoutHints(kv_layout="HDN"), "kv_layout 'HDN'"),
        (lambda: LayoutHints(kv_list_layout="v_k"), "kv_list_layout 'v_k'"),
        (lambda: LayoutHints(tokens_per_block=0), "tokens_per_block is 0"),
        (lambda: EngineGroup(3, (1, 1)), "engine group 3 do not ascend"),
        (lambda: EngineGroup(3, tokens_per_block=-1), "tokens_per_block of engine group 3"),
    ],
)
def test_values_that_cannot_be_are_refused_where_they_are_made(make: object, reason: str) -> None:
    with pytest.raises(LayoutError, match=reason):
        make()  # type: ignore[operator]


def test_a_view_says_what_it_spans() -> None:
    shown = view(9, 4, 16, 32, offset=5)
    nbytes = (5 + 9 * 4 * 16 * 32) * 2
    assert shown.span_bytes() == nbytes
    shown.check_inside(nbytes)
    with pytest.raises(LayoutError, match=f"byte {nbytes} of a storage of {nbytes - 1}"):
        shown.check_inside(nbytes - 1)
    assert view(1, dtype="torch.float16").dtype == "float16"
