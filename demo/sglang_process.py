"""A real SGLang engine in a process of its own (`sglang_engine.py`), for tests."""

from __future__ import annotations

import json
import os
import queue
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from demo.answer import Answer
from demo.child_process import ChildError, ChildProcess
from demo.engine_process import MODEL, PROBE_SECONDS, EngineProcess, RequestError, answer_of
from demo.environment import quiet_environment
from demo.preloaded import Preloaded
from demo.shared_memory import unmapped_files

ROOT: Final = Path(__file__).resolve().parents[1]
SGLANG_PYTHON: Final = ROOT / ".venv-sglang" / "bin" / "python"
SGLANG_IN_PROCESS_PYTHON: Final = ROOT / ".venv-sglang-in-process" / "bin" / "python"
"""Of the same engine without the public package, and with the cache that opens in its process."""
STAND_INS: Final = ROOT / "tests" / "stand_ins"

MODULES: Final = (
    "sglang",
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.scheduler",
    "sglang.srt.models.llama",
    "sglang.srt.mem_cache.storage.lmcache.lmcache_unified_radix_cache",
    "lmcache.integration.sglang.unified_kv_adapter",
    "lmcache.v1.config",
    "lmcache.v1.multiprocess.transfer_context",
    "lmcache.v1.multiprocess.transport.factory",
    "lmcache_sglang.linker",
)
"""What engines import: 25 s of a core, once for all engines of an environment."""
PUBLIC: Final = "lmcache."
"""In names of modules: what the environment without the public package cannot import."""
MODELS: Final = frozenset({"llama", "deepseek_v2", "mellum", "qwen3_moe", "qwen2_moe"})
"""SGLang imports all of its models, a minute's work; only these are used here."""
POOL_TOKENS: Final = 2_560
"""Of the engine's own cache: two of the tests' prompts push each other out."""
CONTEXT_TOKENS: Final = 2_048
SECONDS: Final = 300.0
"""For an answer, and for a start, on a machine with other work."""
FLUSH_SECONDS: Final = 60.0


def sglang_environment() -> dict[str, str]:
    """One thread that computes, and the stand-ins in place of what has no build for this processor."""
    models = ROOT.glob(".venv-sglang/lib/python3.*/site-packages/sglang/srt/models/*.py")
    return quiet_environment() | {
        "PYTHONPATH": os.pathsep.join((str(STAND_INS), str(ROOT))),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_DISABLED_MODEL_ARCHS": ",".join(sorted({each.stem for each in models} - MODELS)),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
    }


@cache
def _preloaded(python: Path) -> Preloaded:
    modules = [name for name in MODULES if python == SGLANG_PYTHON or PUBLIC not in name]
    return Preloaded(python, sglang_environment(), modules)


class SglangProcess(EngineProcess):
    """One SGLang engine, used as an `EngineProcess` is.

    `port` is the cache server's engine port; None makes an engine without a server.  `linker`: with ours in place of the client
    that SGLang has, or with the `NodeLinker` of another module.  `client` are more of the settings of either, `options` more of
    the engine's arguments.  `driver` is the module that drives the engine, `python` the interpreter of the environment that has
    it.  Not thread-safe: one question at a time.
    """

    def __init__(
        self,
        log_path: Path,
        *,
        port: int | None,
        model: Path = MODEL,
        page_size: int = 64,
        tensor_parallel: int = 1,
        linker: bool | str = False,
        client: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        driver: str = "demo.sglang_engine",
        python: Path = SGLANG_PYTHON,
    ) -> None:
        chosen: dict[str, Any] = {
            "page_size": page_size,
            "tp_size": tensor_parallel,
            "max_total_tokens": POOL_TOKENS,
            "context_length": CONTEXT_TOKENS,
            "max_running_requests": 4,
        }
        server = {} if port is None else {"port": port}
        if linker:
            chosen |= {
                "enable_unified_cache_external_linker": True,
                "unified_cache_external_linker_backend": "dynamic",
                "unified_cache_external_linker_config": {
                    "linker": "NodeLinker",
                    "linker_module_path": linker if isinstance(linker, str) else "lmcache_sglang",
                    "linker_extra_config": {**server, **(client or {})},
                },
            }
        elif port is not None:
            config = log_path.with_suffix(".yaml")
            config.parent.mkdir(parents=True, exist_ok=True)
            config.write_text(json.dumps({"mp_host": "127.0.0.1", "mp_port": port, "extra_config": dict(client or {})}))
            chosen |= {"enable_lmcache": True, "lmcache_config_file": str(config)}
        command = [
            str(python),
            "-m",
            driver,
            str(model),
            "--options",
            json.dumps({**chosen, **(options or {})}),
        ]
        environment = sglang_environment()
        if tensor_parallel > 1:
            environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(tensor_parallel)))
        self._child = ChildProcess("SGLang", command, log_path, environment, _preloaded(python))
        self._lines = queue.SimpleQueue()
        self._shared = set()

    def start(self, timeout_seconds: float = SECONDS) -> None:
        before = unmapped_files()
        try:
            super().start(timeout_seconds)
        except ChildError:
            self.kill()
            for path in unmapped_files() - before:
                if path.name.startswith("sglang_"):  # an engine that ends by itself leaves it
                    path.unlink(missing_ok=True)
            raise

    def ask_for(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 8,
        cache_salt: str | None = None,
        extra_key: str | None = None,
        abort_after: float | None = None,
    ) -> Answer:
        """One prompt, with what SGLang's requests may say beside it.  Raises RequestError for one that was aborted."""
        said = {"cache_salt": cache_salt, "extra_key": extra_key, "abort_after": abort_after}
        command = {"prompts": [list(prompt)], "max_tokens": max_tokens}
        command |= {name: value for name, value in said.items() if value is not None}
        (answer,) = self._answers(command, time.monotonic() + SECONDS)
        return answer

    def outcomes(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int = 8, abort_after: float | None = None
    ) -> list[Answer | RequestError]:
        """All prompts at once, and what became of each."""
        command: dict[str, Any] = {"prompts": [list(each) for each in prompts], "max_tokens": max_tokens}
        self._send(command if abort_after is None else {**command, "abort_after": abort_after})
        deadline = time.monotonic() + SECONDS
        lines = [self._next_line(deadline) for _ in prompts]
        return [RequestError(line["error"]) if "error" in line else answer_of(line) for line in lines]

    def update(self, model: Path) -> None:
        """Give it the weights of another model of this shape, as a training does.  Raises ChildError."""
        self._send({"update": str(model)})
        if not (said := self._next_line(time.monotonic() + SECONDS))["updated"]:
            raise self._child.error(f"took no other weights: {said['said']}")

    def flush(self) -> None:
        """Empty the engine's own cache: all that a prompt hits from now on is the server's.  An engine that has work left
        refuses, and is asked again; ChildError if it always does."""
        deadline = time.monotonic() + FLUSH_SECONDS
        while True:
            self._send({"flush": True})
            if self._next_line(time.monotonic() + SECONDS) == {"flushed": True}:
                return
            if time.monotonic() > deadline:
                raise self._child.error(f"was not idle for {FLUSH_SECONDS:.0f} s")
            time.sleep(PROBE_SECONDS)
