"""One cache server with a disk behind it, and SGLang engines that use it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from demo.answer import Answer
from demo.engine_process import EngineProcess
from demo.prompts import random_prompt
from demo.sglang_process import SglangProcess
from tests.engine.site import ROOMY, Site

CHUNK_TOKENS: Final = 256
HEARTBEAT_SECONDS: Final = 4.0
REGISTERED_SECONDS: Final = 60.0
SETTLED_SECONDS: Final = 4.0
"""Two heartbeats of our linker: it has one for the worker and one for lookups, and uses a server that answers both."""
PROMPT_TOKENS: Final = 1_400
CHUNKS: Final = PROMPT_TOKENS // CHUNK_TOKENS
FILLER_TOKENS: Final = 1_900
"""With one of the prompts, more than an engine's own cache has room for."""
CLIENT: Final = {"lmcache.mp.heartbeat_interval": HEARTBEAT_SECONDS, "lmcache.mp.mq_timeout": 60}


class SglangSite(Site):
    """Its engine is SGLang, as its users get it, with the public client of the server."""

    engine: SglangProcess

    def __init__(
        self, folder: Path, options: Sequence[str] = ROOMY, *, unit_tokens: int = CHUNK_TOKENS, **engine: Any
    ) -> None:
        """`unit_tokens` are those of an object.  `engine`: further arguments of the first `SglangProcess`."""
        self._unit_tokens, self._arguments = unit_tokens, engine
        super().__init__(CHUNK_TOKENS, folder, options)

    def new_engine(self, name: str) -> EngineProcess:
        return self.another(name, **self._arguments)

    def restart_engine(self) -> None:
        """Have the first engine register once more."""
        self.engine.kill()
        self.engine.start()

    def another(self, name: str, *, client: Mapping[str, Any] | None = None, **engine: Any) -> SglangProcess:
        """Another engine for the same server, not started yet.  The caller ends it."""
        said = dict(client or {}) if engine.get("linker") else {**CLIENT, **(client or {})}
        return SglangProcess(self.folder / f"{name}.log", port=self.server.port, client=said, **engine)

    def stored(self, prompt: Sequence[int]) -> Answer:
        """The answer to a prompt of which all whole chunks are on disk now."""
        before = len(self.l2.objects())
        (answer,) = self.engine.ask([prompt])
        self.wait_stored(before + len(prompt) // self._unit_tokens)
        return answer

    def ask_anew(self, prompt: Sequence[int]) -> Answer:
        """The answer where the engine's own cache has nothing of the prompt."""
        self.engine.flush()
        (answer,) = self.engine.ask([prompt])
        return answer

    def wait_registered(self, workers: int = 1) -> None:
        """Block until the server has as many; an engine has one for each of its pools."""
        deadline = time.monotonic() + REGISTERED_SECONDS
        while len(known := self.server.status()["workers"]) < workers:
            assert time.monotonic() < deadline, f"after {REGISTERED_SECONDS:.0f} s there are {known}"
            time.sleep(0.2)
        time.sleep(SETTLED_SECONDS)

    def retrieved(self) -> int:
        """Chunks that engines have taken from this start of the server."""
        return int(self.server.status()["chunks"]["retrieved"])


def prompt(seed: int, tokens: int = PROMPT_TOKENS) -> list[int]:
    return random_prompt(20_000 + seed, tokens)
