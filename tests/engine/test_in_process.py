"""The cache inside of a real engine's own process: every tier, one memory for all ranks, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from demo.child_process import ChildError
from demo.engine_process import ENGINE_PYTHON, IN_PROCESS_PYTHON, EngineProcess
from demo.l2_folder import L2Folder
from demo.prompts import random_prompt
from demo.shared_memory import SHM_ROOT
from lmcache_devkit import free_port
from plugins.coordinator.tests.coordinator_process import CoordinatorProcess
from tests.engine.comparison import assert_cached, assert_computed, assert_right
from tests.engine.reference import Reference
from tests.engine.site import CHUNK_TOKENS, SPINNING_WORKERS
from tests.engine.test_blend import ALL_COMPUTED, DOCUMENT_TOKENS, DOCUMENTS, DRIVER, NONE_COMPUTED, counts, prompt
from tests.engine.test_handoff import BLOCK_TOKENS, given_by
from tests.engine.test_tensor_parallel import OBJECTS, SHORT_PROMPTS, WORKERS
from tests.remote.redis_servers import HOST, RedisServer, redis_server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

PROMPTS = [random_prompt(70, 1_500), random_prompt(71, 700)]
CHUNKS = 5 + 2
SMALL: Mapping[str, Any] = {"lmcache.max_local_cpu_size": 0.5, "lmcache.lookup_timeout_ms": 5_000}
SETTLE_SECONDS = 30.0
STORED_SECONDS = 5.0
"""For stores to be over, and in the index: an answer waits for neither."""


@pytest.fixture(autouse=True)
def environment(engine_environment: None) -> None:
    if not IN_PROCESS_PYTHON.exists():
        pytest.skip("no engine without the public package here: run `make setup`")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


class RegisteredEngine(EngineProcess):
    """Its worker registers beside the first step, and until then nothing is found or stored."""

    def start(self, *given: Any, **named: Any) -> None:
        super().start(*given, **named)
        segment_of(self)


def engine_of(folder: Path, name: str, extra: Mapping[str, Any] = SMALL, **more: Any) -> EngineProcess:
    given: dict[str, Any] = {"one_process": True, **more}
    return RegisteredEngine(
        folder / f"{name}.log", port=None, connector="in-process", extra=extra, python=IN_PROCESS_PYTHON, **given
    )


def segment_of(engine: EngineProcess) -> Path:
    """What the first worker says that it has mapped."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not (found := re.search(r"registered url=ipc:\S+ .*segment=(\S+)", engine.log)):
        assert time.monotonic() < deadline, engine.log[-2_000:]
        time.sleep(0.1)
    return SHM_ROOT / found[1]


def wait_unnamed(segment: Path) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    while segment.exists():
        assert time.monotonic() < deadline, f"{segment} has its name still"
        time.sleep(0.1)


def process_of(engine: EngineProcess, what: str) -> int:
    found = re.search(rf"\({what} pid=(\d+)\)", engine.log)
    assert found, engine.log[-2_000:]
    return int(found[1])


def test_memory_then_disk_after_a_kill(reference: Reference, tmp_path: Path) -> None:
    """The file and a variable of the public package's users say what there is."""
    l2, settings = L2Folder(tmp_path / "kv"), tmp_path / "lmcache.yaml"
    settings.write_text(json.dumps({"chunk_size": CHUNK_TOKENS, "local_disk": str(l2.path), "max_local_disk_size": 1}))
    variables = {"LMCACHE_CONFIG_FILE": str(settings), "LMCACHE_MAX_LOCAL_CPU_SIZE": "0.5"}
    truth = reference.answers(PROMPTS)
    with engine_of(tmp_path, "first", {"lmcache.lookup_timeout_ms": 5_000}, environment=variables) as engine:
        segment = segment_of(engine)
        cold = engine.ask(PROMPTS)
        assert_computed(cold)
        assert_right(cold, truth)
        wait_unnamed(segment)
        from_l1 = engine.ask(PROMPTS)
        assert_cached(from_l1, CHUNK_TOKENS)
        assert_right(from_l1, truth)
        l2.wait_for_objects(CHUNKS, timeout_seconds=60)
        assert "l1_gb=0.5 adapters=fs_native" in engine.log
        engine.kill()
        assert not segment.exists()
    with engine_of(tmp_path, "second", {"lmcache.lookup_timeout_ms": 5_000}, environment=variables) as engine:
        from_disk = engine.ask(PROMPTS)
        assert_cached(from_disk, CHUNK_TOKENS)
        assert_right(from_disk, truth)


def test_layer_by_layer(reference: Reference, tmp_path: Path) -> None:
    """Hits of whole prompts, and of a beginning, behind which the rest is computed and stored in the same step."""
    l2 = L2Folder(tmp_path / "kv")
    l2.path.mkdir()
    adapter = {"l2_adapter": [{"type": "fs", "base_path": str(l2.path)}], "plugins": ["fs"]}
    extra = {**SMALL, "lmcache.use_layerwise": True, "lmcache.extra_config": {"server": adapter}}
    branch = [*PROMPTS[0][:1_100], *random_prompt(72, 600)]
    truth, branch_truth = reference.answers(PROMPTS), reference.answers([branch])
    with engine_of(tmp_path, "first", extra) as engine:
        cold = engine.ask(PROMPTS)
        assert_computed(cold)
        assert_right(cold, truth)
        from_l1 = engine.ask(PROMPTS)
        assert_cached(from_l1, CHUNK_TOKENS)
        assert_right(from_l1, truth)
        (first,) = engine.ask([branch], max_tokens=1)
        assert first.cached_tokens == 1_100 // CHUNK_TOKENS * CHUNK_TOKENS
        assert first.output == branch_truth[0].output[:1]
        l2.wait_for_objects(CHUNKS + 2, timeout_seconds=60)
        again = engine.ask([branch])
        assert_cached(again, CHUNK_TOKENS)
        assert_right(again, branch_truth)
    with engine_of(tmp_path, "second", extra) as engine:
        from_disk = engine.ask([*PROMPTS, branch])
        assert_cached(from_disk, CHUNK_TOKENS)
        assert_right(from_disk, [*truth, *branch_truth])


@pytest.mark.slow
def test_an_engine_that_ends_leaves_what_it_had_in_redis(
    redis: RedisServer, reference: Reference, tmp_path: Path
) -> None:
    """In an engine of several processes, which vLLM kills where it takes more than five seconds to end: ours ends before."""
    extra = {**SMALL, "lmcache.remote_url": f"redis://{HOST}:{redis.port}"}
    truth = reference.answers(PROMPTS)
    with engine_of(tmp_path, "first", extra, one_process=False) as engine:
        assert_computed(engine.ask(PROMPTS))
        segment = segment_of(engine)
    assert "before all chunks were written" not in engine.log
    assert not segment.exists()
    with engine_of(tmp_path, "second", extra) as engine:
        from_redis = engine.ask(PROMPTS)
        assert_cached(from_redis, CHUNK_TOKENS)
        assert_right(from_redis, truth)


@pytest.mark.slow
def test_a_worker_finds_the_memory_again_that_has_no_name(reference: Reference, tmp_path: Path) -> None:
    """The process of the scheduler is frozen for so long that its worker counts it as lost."""
    extra = {**SMALL, "lmcache.heartbeat_seconds": 1.0}
    truth = reference.answers(PROMPTS)
    with engine_of(tmp_path, "engine", extra, one_process=False) as engine:
        assert_computed(engine.ask(PROMPTS))
        wait_unnamed(segment_of(engine))
        scheduler = process_of(engine, "EngineCore")
        os.kill(scheduler, signal.SIGSTOP)
        try:
            time.sleep(5.0)
        finally:
            os.kill(scheduler, signal.SIGCONT)
        engine.ask_until_cached(PROMPTS[0], timeout_seconds=60)
        again = engine.ask(PROMPTS)
        assert_cached(again, CHUNK_TOKENS)
        assert_right(again, truth)
        assert len(re.findall("registered url=ipc", engine.log)) > 1


@pytest.mark.alone
@pytest.mark.slow
def test_two_ranks_share_one_memory(reference: Reference, tmp_path: Path) -> None:
    l2 = L2Folder(tmp_path / "kv")
    extra = {**SMALL, **SPINNING_WORKERS, "lmcache.local_disk": str(l2.path), "lmcache.max_local_disk_size": 1}
    extra["lmcache.blocking_timeout_secs"] = 60
    given: Mapping[str, Any] = {"extra": extra, "one_process": False, "tensor_parallel": WORKERS}
    truth = reference.answers(SHORT_PROMPTS)
    with engine_of(tmp_path, "first", **given) as engine:
        cold = engine.ask(SHORT_PROMPTS)
        assert_computed(cold)
        assert_right(cold, truth)
        from_l1 = engine.ask(SHORT_PROMPTS)
        assert_cached(from_l1, CHUNK_TOKENS)
        assert_right(from_l1, truth)
        l2.wait_for_objects(OBJECTS, timeout_seconds=120)
        segments = re.findall(r"registered url=ipc:\S+ .*segment=(\S+)", engine.log)
        assert len(segments) == WORKERS
        assert len(set(segments)) == 1, "one memory for both"
        assert "l1_gb=1.0" in engine.log, "each brings its share"
        wait_unnamed(SHM_ROOT / segments[0])
    with engine_of(tmp_path, "second", **given) as engine:
        from_disk = engine.ask(SHORT_PROMPTS)
        assert_cached(from_disk, CHUNK_TOKENS)
        assert_right(from_disk, truth)


@pytest.mark.slow
def test_an_environment_with_the_public_package_is_refused(tmp_path: Path) -> None:
    engine = EngineProcess(tmp_path / "log", port=None, connector="in-process", python=ENGINE_PYTHON, one_process=True)
    try:
        with pytest.raises(ChildError):
            engine.start()
    finally:
        engine.kill()
    assert "install lmcache-vllm[in-process], where the public package, lmcache, is not" in engine.log


@pytest.mark.slow
def test_a_prompt_is_handed_over(reference: Reference, tmp_path: Path) -> None:
    """By keys of the public package, from memory that has no name any more."""
    shared = {"chunk_size": CHUNK_TOKENS, "max_local_cpu_size": 0.5, "local_cpu": False, "enable_pd": True}
    truth = reference.answers(PROMPTS)
    with ExitStack() as stack:
        coordinator = stack.enter_context(CoordinatorProcess(tmp_path))
        server = {"coordinator_url": coordinator.url, "coordinator_heartbeat_interval": 0.5}
        engines = []
        for role in ("sender", "receiver"):
            settings = tmp_path / f"{role}.yaml"
            place = {"pd_role": role, "pd_peer_host": "localhost", "pd_peer_init_port": free_port()}
            settings.write_text(json.dumps({**shared, **place, "extra_config": {"server": server}}))
            extra = {"lmcache.lookup_timeout_ms": 20_000, "lmcache.handoff_progress_seconds": 20.0}
            variables = {"LMCACHE_CONFIG_FILE": str(settings)}
            engines.append(stack.enter_context(engine_of(tmp_path, role, extra, environment=variables)))
        sender, receiver = engines
        wait_unnamed(segment_of(sender))
        taken = [receiver.ask_with(prompt, given_by(sender, prompt)) for prompt in PROMPTS]
        assert_cached(taken, BLOCK_TOKENS)
        assert_right(taken, truth)
        late = random_prompt(73, 900)  # what was pulled before is held for a while
        params = given_by(sender, late)
        sender.kill()
        alone = receiver.ask_with(late, params)
        assert_computed([alone])
        assert_right([alone], reference.answers([late]))


@pytest.mark.slow
def test_documents_are_blended_by_a_file_of_the_public_package(reference: Reference, tmp_path: Path) -> None:
    """All of them are computed again, which has to be exact, and none."""
    control, settings = tmp_path / "control.json", tmp_path / "lmcache.yaml"
    control.write_text("{}")
    settings.write_text(
        "chunk_size: 64\nmax_local_cpu_size: 0.2\nuse_layerwise: true\nenable_blending: true\nblend_special_str: ''\n"
        "blend_min_tokens: 64\nblend_check_layers: [0, 1]\nblend_recompute_ratios: [1.0, 1.0]\nblend_thresholds: [0.001, 0.0]\n"
    )
    options = [str(control), "--max-num-seqs", "64", "--max-model-len", "4096"]
    extra, variables = {"lmcache.lookup_timeout_ms": 20_000}, {"LMCACHE_CONFIG_FILE": str(settings)}
    with engine_of(tmp_path, "blend", extra, environment=variables, driver=DRIVER, options=options) as engine:
        for document in DOCUMENTS:
            engine.ask([[*document, 5]], max_tokens=1)
        time.sleep(STORED_SECONDS)
        answer = engine.ask_with(prompt(1), {"lmcache.blend": True, **ALL_COMPUTED})
        assert counts(answer) == (0, DOCUMENT_TOKENS)
        assert_right([answer], reference.answers([prompt(1)]))
        none = engine.ask_with(prompt(2), {"lmcache.blend": True, **NONE_COMPUTED})
        assert counts(none) == (DOCUMENT_TOKENS, 0)
