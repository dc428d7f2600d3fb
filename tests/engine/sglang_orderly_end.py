"""`demo.sglang_engine` whose scheduler ends as that of `launch_server` does at SIGTERM: it is asked to, and has 15 s."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any, Final

from sglang.srt.entrypoints.engine import Engine
from sglang.srt.managers.io_struct import ShutdownReq

from demo import sglang_engine

SECONDS: Final = 15.0


def shut_down(engine: Any) -> None:
    processes = len(multiprocessing.active_children())
    engine.tokenizer_manager._subprocess_watchdog.stop()
    engine.tokenizer_manager._dispatch_to_scheduler(ShutdownReq())
    deadline = time.monotonic() + SECONDS
    while len(multiprocessing.active_children()) == processes and time.monotonic() < deadline:
        time.sleep(0.1)
    kill(engine)


if __name__ == "__main__":
    kill = Engine.shutdown
    Engine.shutdown = shut_down
    sglang_engine.main()
