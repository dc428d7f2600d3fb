"""A real vLLM engine in a process of its own (`engine.py`), for the demo and for tests."""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from demo.answer import Answer
from demo.child_process import ChildProcess
from demo.environment import quiet_environment
from demo.preloaded import ENGINE, Preloaded
from demo.shared_memory import shared_by_group

HERE = Path(__file__).resolve().parent
ENGINE_PYTHON = HERE.parent / ".venv-engine" / "bin" / "python"
IN_PROCESS_PYTHON = HERE.parent / ".venv-in-process" / "bin" / "python"
"""Of the same engine without the public package, and with the cache that opens in its process."""
MODEL = HERE / ".model"

THREADS_MAX = 8
"""The model is tiny: more threads only wait for each other."""


PROBE_SECONDS = 0.2


class RequestError(Exception):
    """The engine ended a request with an error; the engine itself may well live on."""


def engine_environment(tensor_parallel: int, kv_gib: int = 1, *, one_process: bool = False) -> dict[str, str]:
    """Threads that sleep while they wait and are bound to no core.  `one_process`: see `EngineProcess`.

    An engine, a cache server and perhaps a second engine share the cores here.  OpenMP threads that spin at a barrier
    keep the thread that they wait for off its core, and pinned ones pile up on the same cores: ten times slower.
    """
    threads = max(1, min(len(os.sched_getaffinity(0)), THREADS_MAX) // tensor_parallel)
    return quiet_environment() | {
        "PYTHONPATH": str(HERE.parent),  # drivers that live elsewhere share code with `engine.py`
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
        "VLLM_ENABLE_V1_MULTIPROCESSING": str(int(not one_process)),
        "VLLM_LOGGING_COLOR": "0",
    }


@cache
def preloaded(python: Path) -> Preloaded:
    """What starts engines of this environment: one for all of a process, and as long as it.

    What vLLM marks for torch's compiler while it is imported, a count for the sampler, is not compiled: that took an engine
    half of its start."""
    return Preloaded(python, engine_environment(1) | {"TORCHDYNAMO_DISABLE": "1"}, ENGINE)


def answer_of(line: Mapping[str, Any]) -> Answer:
    """The answer that one line of a driver describes."""
    return Answer(
        prompt_tokens=line["prompt_tokens"],
        cached_tokens=line["cached_tokens"],
        seconds_to_first_token=line["seconds_to_first_token"],
        output=tuple(line["output"]),
        first=tuple((token, value) for token, value in line["first"]),
        kv_transfer_params=line.get("kv_transfer_params"),
    )


class EngineProcess:
    """One engine.  As a context manager: it starts on entry, and nothing of it is left after exit.

    `port` is the cache server's engine port; None makes an engine without a cache, or with one in its own process where
    `connector` says so.  `model` is a directory of `make_model.py`.  `connector` is a key of `engine.CONNECTORS`.  `extra`
    is merged into the connector's configuration.  `driver` is the program that drives the engine, `options` are more
    arguments for it.  `kv_gib` is the engine's own memory for KV.  `one_process` puts the front end, the scheduler and the
    worker into one process, which starts with a third of the imports; vLLM on the CPU gives each a process by default.
    `python` is the interpreter of the environment that has the engine, `environment` more of its variables.
    Not thread-safe: one question at a time.
    """

    def __init__(
        self,
        log_path: Path,
        *,
        port: int | None,
        model: Path = MODEL,
        connector: str = "stock",
        extra: Mapping[str, Any] | None = None,
        load_failure: str = "recompute",
        tensor_parallel: int = 1,
        block_size: int = 32,
        driver: Path = HERE / "engine.py",
        options: Sequence[str] = (),
        kv_gib: int = 1,
        one_process: bool = False,
        python: Path = ENGINE_PYTHON,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        command = [str(python), str(driver), str(model), *options]
        command += ["--block-size", str(block_size), "--tensor-parallel", str(tensor_parallel)]
        if port is not None:
            command += ["--port", str(port)]
        command += ["--extra", json.dumps(dict(extra or {})), "--load-failure", load_failure, "--connector", connector]
        whole = engine_environment(tensor_parallel, kv_gib, one_process=one_process) | dict(environment or {})
        self._child = ChildProcess("vLLM", command, log_path, whole, preloaded(python))
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._shared: set[Path] = set()

    @property
    def pid(self) -> int:
        """Of the front end; a scheduler and workers with processes of their own descend from it."""
        return self._child.pid

    @property
    def log(self) -> str:
        """What the engine has printed so far."""
        return self._child.log_path.read_text(errors="replace")

    def launch(self) -> None:
        """Start the process and return at once: several engines can then start side by side.  The first of an environment
        waits for its imports."""
        self._child.start(piped=True)
        self._lines = queue.SimpleQueue()  # what an earlier start has left unread is not this one's
        reader = threading.Thread(target=self._read, args=(self._lines,), name="engine-reader", daemon=True)
        reader.start()

    def wait_ready(self, timeout_seconds: float = 240.0) -> None:
        """Block until the engine has served its warm-up request; raises ChildError when it does not come to that."""
        if "ready" not in self._next_line(time.monotonic() + timeout_seconds):
            raise self._child.error("answered before it was ready")
        self._shared = shared_by_group(self._child.pid)

    def start(self, timeout_seconds: float = 240.0) -> None:
        self.launch()
        self.wait_ready(timeout_seconds)

    def ask(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int = 8, timeout_seconds: float = 120.0
    ) -> list[Answer]:
        """One prompt after the other, each with the engine to itself.  `timeout_seconds` is for each prompt."""
        return [
            self.ask_together([prompt], max_tokens=max_tokens, timeout_seconds=timeout_seconds)[0] for prompt in prompts
        ]

    def ask_together(
        self, prompts: Sequence[Sequence[int]], *, max_tokens: int = 8, timeout_seconds: float = 120.0
    ) -> list[Answer]:
        """All prompts at once.  Raises RequestError for the first that failed, ChildError when the engine is silent."""
        command = {"prompts": [list(prompt) for prompt in prompts], "max_tokens": max_tokens}
        return self._answers(command, time.monotonic() + timeout_seconds)

    def ask_with(
        self,
        prompt: Sequence[int],
        kv_transfer_params: Mapping[str, Any],
        *,
        max_tokens: int = 8,
        timeout_seconds: float = 120.0,
    ) -> Answer:
        """One prompt, with what a proxy says to the engine's connector.  Raises as `ask_together` does."""
        command = {"prompts": [list(prompt)], "max_tokens": max_tokens, "kv_transfer_params": dict(kv_transfer_params)}
        (answer,) = self._answers(command, time.monotonic() + timeout_seconds)
        return answer

    def _answers(self, command: Mapping[str, Any], deadline: float) -> list[Answer]:
        self._send(command)
        lines = [self._next_line(deadline) for _ in command["prompts"]]
        for line in lines:
            if "error" in line:
                raise RequestError(line["error"])
        return [answer_of(line) for line in lines]

    def ask_until_cached(self, prompt: Sequence[int], *, timeout_seconds: float) -> Answer:
        """Repeat one prompt until part of it comes from the cache: the engine is registered and storing again.

        Raises ChildError when that does not happen in time.  Each repetition is bounded by the same time.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            (answer,) = self.ask([prompt], timeout_seconds=timeout_seconds)
            if answer.cached_tokens > 0:
                return answer
            if time.monotonic() > deadline:
                raise self._child.error(f"took nothing from the cache for {timeout_seconds:.0f} s")
            time.sleep(PROBE_SECONDS)

    def stop(self, timeout_seconds: float = 30.0) -> None:
        """Let the engine end by itself, which unregisters it from the server; kill it when it does not."""
        if self._child.running:
            self._child.stdin.close()
            self._child.wait(timeout_seconds)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the front end, the scheduler and the workers; the memory that they shared goes with them."""
        if self._child.running:
            self._shared |= shared_by_group(self._child.pid)
        self._child.kill()
        while self._shared:
            self._shared.pop().unlink(missing_ok=True)

    def pause(self) -> None:
        """Freeze the engine, wherever it is, until `resume`; a stopped engine can be killed."""
        self._child.pause()

    def resume(self) -> None:
        self._child.resume()

    def _send(self, command: Mapping[str, Any]) -> None:
        try:
            print(json.dumps(command), file=self._child.stdin, flush=True)
        except (BrokenPipeError, ValueError):
            raise self._child.error("is not running any more") from None

    def _read(self, lines: queue.SimpleQueue[str | None]) -> None:
        with self._child.stdout as stdout:
            for line in stdout:
                lines.put(line)
        lines.put(None)

    def _next_line(self, deadline: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            self.kill()
            raise self._child.error("did not answer in time, and was killed") from None
        if line is None:
            raise self._child.error("ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop() if kind is None else self.kill()
