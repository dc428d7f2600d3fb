"""Ranks that decide together, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")

RANK = """
import sys, time
import torch
from lmcache_vllm import blend_ranks

store, rank, acts = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if acts == "fails, and soon ends":
    blend_ranks.PEERS_SECONDS = 1.0
torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
ranks = blend_ranks.TensorParallelRanks(torch.distributed.group.WORLD)
assert ranks.agree(True)
assert ranks.add(torch.tensor([1.0, rank]).numpy()).tolist() == [2.0, 1.0]
print("together", flush=True)
if acts == "waits in the model":
    time.sleep(600)
if acts == "is late":
    time.sleep(2.0)
print(ranks.agree(not acts.startswith("fails")), flush=True)
del ranks
torch.distributed.destroy_process_group()  # its threads end with it, as in vLLM's workers, and not with the interpreter
"""


@contextmanager
def ranks(folder: Path, *acts: str) -> Iterator[list[subprocess.Popen[str]]]:
    with ExitStack() as stack:
        yield [stack.enter_context(started(folder, rank, act)) for rank, act in enumerate(acts)]


@contextmanager
def started(folder: Path, rank: int, act: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", RANK, str(folder / "store"), str(rank), act]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("acts", [("fails", "is fine"), ("fails", "fails"), ("is fine", "fails")])
def test_what_fails_on_one_rank_fails_on_all(tmp_path: Path, acts: tuple[str, str]) -> None:
    with ranks(tmp_path, *acts) as processes:
        for process in processes:
            said, _ = process.communicate(timeout=60)
            assert (process.returncode, said.splitlines()[-2:]) == (0, ["together", "False"]), said


def test_one_that_is_fine_waits_for_the_others(tmp_path: Path) -> None:
    with ranks(tmp_path, "is fine", "is late") as processes:
        for process in processes:
            said, _ = process.communicate(timeout=60)
            assert (process.returncode, said.splitlines()[-1:]) == (0, ["True"]), said


def test_one_that_fails_while_the_others_wait_in_the_model_ends_with_a_word(tmp_path: Path) -> None:
    with ranks(tmp_path, "fails, and soon ends", "waits in the model") as (failing, waiting):
        began = time.monotonic()
        said, _ = failing.communicate(timeout=60)
        assert failing.returncode == 1
        assert "a pass of a blend failed on rank 0 alone, and the other workers wait for it in the model" in said
        assert time.monotonic() - began < 60
        assert waiting.poll() is None
