"""Engines that do not say in which order a block has its elements: their processor decides it."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.tests.server.conftest import StartServer
from lmcache_client.messages import LayoutPart, WorkerRegistration
from lmcache_client.operations import REGISTER_WORKER
from lmcache_core.app import open_engine_port
from lmcache_devkit.fake_engine import FakeEngine

AMX, OTHER = "flags\t\t: fpu amx_bf16 amx_tile amx_int8\n", "flags\t\t: fpu avx512_bf16\n"
CPUINFO = "processor\t: {0}\nmodel name\t: amx_tile\n{1}bugs\t\t: amx_tile\n\n"


@pytest.fixture(params=[AMX, OTHER, "", None], ids=["amx", "other", "no-flags", "no-file"])
def has_amx(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the server's machine is said to have AMX."""
    file = tmp_path / "cpuinfo"
    if request.param is not None:
        file.write_text("".join(CPUINFO.format(number, request.param) for number in range(4)))
    monkeypatch.setattr(open_engine_port, "CPUINFO", file)
    return bool(request.param == AMX)


@pytest.mark.parametrize(
    ("dtype", "block_tokens", "packed"),
    [
        ("bfloat16", 32, True),
        ("bfloat16", 64, True),
        ("uint8", 32, True),
        ("bfloat16", 16, False),
        ("float16", 32, False),
        ("float32", 32, False),
    ],
)
def test_stock_workers(start_server: StartServer, has_amx: bool, dtype: str, block_tokens: int, packed: bool) -> None:
    server = start_server(chunk_size=64)
    order = " ordered amx" if has_amx and packed else ""
    with FakeEngine(server.info.engine_endpoint, dtype=dtype, block_tokens=block_tokens):
        assert layouts(server.status()) == [f"{dtype}[2, 64, 64] in blocks of {block_tokens}{order}"]


def test_an_order_that_the_worker_says_counts(start_server: StartServer, has_amx: bool) -> None:
    """Without one it is taken for a stock worker of this machine, whose chunks it shares; on a GPU, blocks do not count."""
    parts = [
        LayoutPart(2, 1, 64, 64, "bfloat16", block_slots, order)
        for block_slots, order in ((32, ""), (32, "a1"), (0, ""))
    ]
    server = start_server(chunk_size=64)
    engine = FakeEngine(server.info.engine_endpoint)
    engine.worker.call(REGISTER_WORKER, WorkerRegistration(engine.instance_id, "model", 1, 0, tuple(parts)))
    plain = "bfloat16[2, 1, 64, 64]"
    blocks = f"{plain} in blocks of 32"
    found = f"{blocks}{' ordered amx' if has_amx else ''} + {blocks} ordered a1 + {plain}"
    assert layouts(server.status()) == [found]
    engine.close()


def layouts(status: object) -> list[str]:
    assert isinstance(status, dict)
    return [worker["layout"] for worker in status["workers"]]
