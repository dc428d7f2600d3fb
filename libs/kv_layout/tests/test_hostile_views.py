"""Descriptions from outside lead to a copy inside of their memory, or to an error; never to anything else."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from hypothesis import event, given, settings
from hypothesis import strategies as st

from lmcache_kv_layout import (
    EngineGroup,
    LayoutError,
    LayoutHints,
    PageCopier,
    PagedGroup,
    TensorView,
    detect_groups,
    plan_object_groups,
)

MEMORY = 4096
TEMPLATES: list[tuple[int | None, ...]] = [
    (None, None, None),
    (None, 1, None),
    (None, None, None, None),
    (2, None, None, None, None),
    (None, 2, None, None, None),
    (None, None, None, 2, None),
    (None, None, 2, None, None, None),
    (2, None, None, 1, None, None),
    (None, None, None, None, None, None),
]
"""Sizes that formats fix, `None` where they do not."""
WILD = [-1, 16, 64, 132, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 2**70]

numbers = st.one_of(st.integers(0, 8), st.sampled_from(WILD))
number_lists = st.lists(numbers, max_size=7)
engines = st.sampled_from(["vllm", "vllm", "sglang", "trtllm"])
devices = st.sampled_from(["cpu", "cuda"])
hints = st.builds(
    LayoutHints,
    kv_layout=st.sampled_from([None, "HND", "NHD"]),
    num_kv_heads=st.sampled_from([None, 1, 4]),
    tokens_per_block=st.sampled_from([None, 1, 2, 3]),
    kv_list_layout=st.sampled_from([None, "k_v", "unified"]),
    head_dim=st.sampled_from([None, 2, 8]),
)


@st.composite
def wild_views(draw: st.DrawFn) -> TensorView | None:
    dtype = draw(st.sampled_from(["uint8", "bfloat16", "torch.float32", "int64", ""]))
    try:
        return TensorView(dtype, tuple(draw(number_lists)), tuple(draw(number_lists)), draw(numbers), draw(numbers))
    except LayoutError:
        return None


@st.composite
def registrations(draw: st.DrawFn) -> list[TensorView | tuple[TensorView, ...]]:
    """Layers of one shape that could be right, with strides, order, offsets or a size a little off."""
    sizes = st.sampled_from([1, 2, 3, 4, 5])
    shape = [draw(sizes) if size is None else size for size in draw(st.sampled_from(TEMPLATES))]
    stride = [int(np.prod(shape[place + 1 :])) for place in range(len(shape))]
    if draw(st.booleans()):
        stride[0] += draw(st.integers(0, 30))
    if draw(st.integers(0, 3)) == 0:
        stride[draw(st.integers(0, len(stride) - 1))] = draw(st.integers(0, 200))
    order = draw(st.permutations(range(len(shape)))) if draw(st.booleans()) else list(range(len(shape)))
    dtype = draw(st.sampled_from(["uint8", "float16"]))
    views = []
    for _ in range(draw(st.integers(1, 6))):
        with suppress(LayoutError):
            turned = tuple(shape[place] for place in order), tuple(stride[place] for place in order)
            view = TensorView(dtype, *turned, draw(st.integers(0, 64)))
            view.check_inside(MEMORY)
            views.append(view)
    planes = draw(st.sampled_from([1, 1, 1, 2, 3]))
    if planes == 1:
        return list(views)
    return [tuple(views[place : place + planes]) for place in range(0, len(views), planes)]


def copy_all(group: PagedGroup) -> None:
    """Copy every block out of memory with walls around it and back: no byte of the walls is read or written."""
    whole = np.full(3 * MEMORY, 0x77, np.uint8)
    inside = slice(MEMORY, 2 * MEMORY)
    whole[inside] = 0xA5
    bases = [whole.ctypes.data + MEMORY + offset for _, offset in group.bases]
    blocks = list(range(group.blocks))
    kept = np.zeros(group.region_layout(len(blocks)).payload_bytes, np.uint8)
    PageCopier().gather(group, bases, blocks, [kept.ctypes.data])
    assert (kept == 0xA5).all()
    kept[:] = 0x11
    PageCopier().scatter(group, bases, blocks, [kept.ctypes.data])
    assert 0 < (whole == 0x11).sum() <= kept.nbytes
    assert (np.delete(whole, inside) == 0x77).all()


@settings(max_examples=150, deadline=None)
@given(
    views=st.lists(wild_views(), max_size=4),
    hint=hints,
    groups=st.lists(st.tuples(number_lists, numbers, numbers), max_size=3),
    engine=engines,
    device=devices,
    chunk_tokens=numbers,
)
def test_anything_may_be_described(
    views: list[TensorView | None],
    hint: LayoutHints,
    groups: list[tuple[list[int], int, int]],
    engine: str,
    device: str,
    chunk_tokens: int,
) -> None:
    shown = [view for view in views if view is not None]
    with suppress(LayoutError):
        listed = [
            EngineGroup(place, tuple(indices), tokens, window) for place, (indices, tokens, window) in enumerate(groups)
        ]
        found = detect_groups(shown, hint, listed, device, engine)
        for separate in (False, True):
            plan_object_groups(found, chunk_tokens, separate, trim_windows=separate)


@settings(max_examples=500, deadline=None)
@given(entries=registrations(), hint=hints, tokens=st.sampled_from([0, 0, 2, 4]), engine=engines, device=devices)
def test_what_is_accepted_stays_inside_of_its_memory(
    entries: list[TensorView | tuple[TensorView, ...]], hint: LayoutHints, tokens: int, engine: str, device: str
) -> None:
    try:
        (group,) = detect_groups(entries, hint, [EngineGroup(0, (), tokens)], device, engine)
    except LayoutError:
        event("refused")
        return
    event(group.format.name)
    copy_all(group)
