"""How an engine's process ends: nothing is left behind, and nothing is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OPENED = """
import torch
from engines.local.tests.parts import CHUNK, config, fill, kv_cache, metadata, slots
from lmcache_engine import CreateGPUConnector, EngineType, LMCacheEngineBuilder
TOKENS = list(range(4 * CHUNK))
def opened(**changes):
    made, about = config(**changes), metadata()
    pages = CreateGPUConnector(made, about, EngineType.VLLM, {"kv_layout": "HND"})
    engine = LMCacheEngineBuilder.get_or_create("e", made, about, pages)
    engine.post_init(kvcaches=kv_cache())
    engine.store(TOKENS, slot_mapping=slots(range(8)))
    return engine
"""
SHARED = '{"server": {"l1_shared_memory": True}}'


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", OPENED + script], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
    )


@pytest.mark.parametrize(
    "script",
    [
        "engine = opened()",
        "engine = opened(); engine.close()",
        "engine = opened(); storing = engine.store_layer([7] * CHUNK, slot_mapping=slots(range(2))); next(storing)",
        "engine = opened(); reading = engine.retrieve_layer(TOKENS, slot_mapping=slots(range(8))); next(reading)",
        "engine = opened(); assert engine.lookup(TOKENS, pin=True, lookup_id='a') == len(TOKENS)",
        f"engine = opened(extra_config={SHARED}); engine.close()",
    ],
)
def test_nothing_is_printed_when_the_interpreter_exits(script: str) -> None:
    done = run(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_process_that_is_killed_leaves_nothing_in_shared_memory() -> None:
    done = run(
        "import os, signal\n"
        "engine = opened()\n"
        "mapped = [line.split()[-1] for line in open('/proc/self/maps') if '/dev/shm' in line]\n"
        "print(engine.status()['l1']['segment'], *mapped, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert done.returncode == -9, done.stderr
    segment, *mapped = done.stdout.split()
    assert segment == "None"
    assert [each for each in mapped if Path(each).exists()] == []


def test_a_generator_that_is_dropped_gives_its_slots_back() -> None:
    done = run(
        "engine = opened()\n"
        "storing = engine.store_layer([7] * CHUNK, slot_mapping=slots(range(2))); next(storing)\n"
        "reading = engine.retrieve_layer(TOKENS, slot_mapping=slots(range(8))); next(reading)\n"
        "print(engine.status()['l1']['held'])\n"
        "del storing, reading\n"
        "print(engine.status()['l1']['held'], engine.lookup([7] * CHUNK))\n"
        "engine.close()"
    )
    assert done.stdout.split() == ["5", "0", "0"], done.stderr


def test_a_close_takes_no_memory_from_calls_that_are_under_way() -> None:
    """They end with LMCacheError, or with what they found; a read of memory that is gone would end the process."""
    done = run(
        "import threading\n"
        "from lmcache_client import LMCacheError\n"
        "ends = []\n"
        "def work(engine, call):\n"
        "    try:\n"
        "        while True: call(engine)\n"
        "    except LMCacheError as error: ends.append(str(error))\n"
        "    except BaseException as error: ends.append(repr(error))\n"
        "calls = [lambda e: e.retrieve(TOKENS, slot_mapping=slots(range(8, 16))), lambda e: e.lookup(TOKENS)]\n"
        "for number in range(10):\n"
        "    engine = opened()\n"
        "    threads = [threading.Thread(target=work, args=(engine, call)) for call in calls]\n"
        "    for each in threads: each.start()\n"
        "    threading.Event().wait(0.02 * number)\n"
        "    LMCacheEngineBuilder.destroy('e')\n"
        "    for each in threads: each.join(20)\n"
        "print(len(ends), {each for each in ends if 'closed' not in each})\n"
    )
    assert (done.returncode, done.stdout.strip()) == (0, "20 set()"), done.stderr
