"""Workers of two engines in front of one server: bytes that mean something else are a miss, whatever their shape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from demo.server_process import ServerProcess
from engines.vllm.tests.vllm_configs import LAYERS, vllm_config
from engines.vllm.tests.worker_kit import BLOCK_TOKENS, CHUNK_TOKENS, fused_hnd, rig, transfer
from lmcache_vllm.model_identity import engine_identity
from lmcache_vllm.placement import CacheGroup, Placement

BLOCKS = [[*range(1, 4 * CHUNK_TOKENS // BLOCK_TOKENS + 1)]]
MEANINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "types of one size": ({"cache_dtype": "fp8_e4m3"}, {"cache_dtype": "fp8_e5m2"}),
    "other platforms": ({"cache_dtype": "fp8", "float8": "e4m3fn"}, {"cache_dtype": "fp8", "float8": "e4m3fnuz"}),
    "cuts of equal shapes": (
        {"stages": ((0, 5), (5, 8), (8, 12), (12, 16))},
        {"stages": ((0, 4), (4, 7), (7, 12), (12, 16))},
    ),
    "orders of layers": ({}, {"groups": (CacheGroup(("model.layers.1", "model.layers.0"), 16),)}),
    "revisions": ({"revision": "a"}, {"revision": "b"}),
    "rotary embeddings": ({}, {"hf": {"rope_scaling": {"type": "linear", "factor": 4.0}}}),
    "quantizations": ({}, {"quantization": "fp8"}),
    "weights": ({"seed": 0}, {"seed": 1}),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options = ["--l1-size-gb", "0.0625", "--chunk-size", str(CHUNK_TOKENS), "--eviction-policy", "LRU"]
    with ServerProcess(options, tmp_path_factory.mktemp("server") / "log") as process:
        yield process


def place(
    share_with_stock: bool, stages: Any = ((0, 2),), groups: Any = (LAYERS,), float8: str = "e4m3fn", **given: Any
) -> Placement:
    identity = engine_identity(
        vllm_config(**given), groups, stages=stages, float8=float8, share_with_stock=share_with_stock
    )
    return Placement(identity.model_name(), 1, 0)


def loaded(server: ServerProcess, writer: Placement, reader: Placement, salt: str) -> bool:
    """Whether one engine gets what the other one has stored."""
    tokens = list(range(500, 500 + 4 * CHUNK_TOKENS))
    some, others = fused_hnd("uint8"), fused_hnd("uint8")
    with rig(server.port, some, placement=writer) as first, rig(server.port, others, placement=reader) as second:
        first.store(transfer(tokens, BLOCKS, salt=salt))
        others.wipe()
        second.load(transfer(tokens, BLOCKS, salt=salt))
        if second.counts.get("failed_loads:missing"):
            assert not any(np.any(pages) for pages in others.pages.values())
            return False
        for expected, found in zip(some.blocks_of(BLOCKS), others.blocks_of(BLOCKS), strict=True):
            np.testing.assert_array_equal(found, expected)
        return True


@pytest.mark.parametrize("difference", MEANINGS)
def test_engines_whose_bytes_mean_something_else_do_not_share(server: ServerProcess, difference: str) -> None:
    some, others = MEANINGS[difference]
    assert loaded(server, place(False, **some), place(False, **some), f"alike {difference}")
    assert not loaded(server, place(False, **some), place(False, **others), f"apart {difference}")


def test_the_stock_name_tells_none_of_them_apart(server: ServerProcess) -> None:
    """What `lmcache.share_with_stock` means, and why it is off."""
    some, others = MEANINGS["types of one size"]
    assert loaded(server, place(True, **some), place(True, **others), "stock")
