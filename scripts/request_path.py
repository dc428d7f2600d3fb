"""Which code a request runs through, from a live server: `python -m scripts.request_path`.

A server with core's plugins and `fs` runs in this process with a profile function on each of its threads.  Three paths are
traced: a warm lookup, a store of four chunks with its way to `fs`, and a start up to `build`.  A call counts where its
function is defined in this repository; comprehensions and bodies of modules and classes do not.

`python -m scripts.request_path --markdown > docs/internals/life-of-a-request.md` writes the page "The life of a request".
"""

from __future__ import annotations

import argparse
import ast
import inspect
import itertools
import json
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from lmcache_core.app.build import build
from lmcache_core.app.plugins.loading import load_plugins
from lmcache_core.app.server import Server
from lmcache_core.app.settings import ServerSettings
from lmcache_devkit import free_port
from lmcache_devkit.fake_engine import FakeEngine

ROOT: Final = Path(__file__).parents[1]
CHUNK_TOKENS: Final = 16
STORED_CHUNKS: Final = 4
SETTLE_SECONDS: Final = 0.3
LINE: Final = 120
BESIDE: Final = ("conditions", "events-", "l1-preallocation", "reaper")
"""How names of threads begin that no request waits for."""


class Call(NamedTuple):
    """One call of a function of this repository."""

    file: str
    """Relative to the repository: `core/src/lmcache_core/server/router.py`."""
    function: str


class Budget(NamedTuple):
    """Limits of a path: they may only fall."""

    files: int
    calls: int | None = None


BUDGETS: Final = {"lookup": Budget(18, 70), "store": Budget(45), "start": Budget(14)}
AIMS: Final = {"lookup": Budget(20, 70), "store": Budget(45), "start": Budget(15)}


ABOUT: Final = {
    "lmcache_client/codec.py": "The payload frames are opened: how much is there to read, and can it be read now? "
    "The result becomes a frame in the end.",
    "lmcache_client/engine_key.py": "The bytes before and behind the tokens of a key are found and decoded. The "
    "tokens stay a view of the received frame.",
    "lmcache_core/server/router.py": "One thread receives the message, decides where it is answered, and sends the "
    "answer. A small request is answered on this thread at once; others go to a pool.",
    "lmcache_core/server/engine_socket.py": "The ROUTER socket gives whole messages and takes whole answers. It never "
    "blocks.",
    "lmcache_core/server/calls.py": "The operation's handler is called; whatever it raises becomes the operation's "
    "negative answer.",
    "lmcache_core/server/chunk_hashing.py": "The key is read. Tokens that came before are compared and not decoded, "
    "and their hashes are known.",
    "lmcache_core/server/prompt_memory.py": "The radix tree of the tenant's prompts finds the longest beginning that was "
    "read before, by its bytes.",
    "lmcache_core/server/lookup_module.py": "**The operation LOOKUP.** Names and ranges are checked; the shards that a "
    "chunk of this model has are known from the last lookup until a worker comes or leaves.",
    "lmcache_core/server/request_fields.py": "Model, salt and request are names that the server serves.",
    "lmcache_core/storage/lookups.py": "**Where the answer is made.** A lookup references what L1 has. If all of it is "
    "there, it is answered at once; otherwise the rest goes on as a prefetch. The eviction policy is notified of the hits.",
    "lmcache_core/storage/open_lookups.py": "What the lookup found is kept for its request, with the number of reads "
    "that are to come, until workers have read it or the request ends.",
    "lmcache_core/storage/counters.py": "The tenant's counters get this lookup.",
    "lmcache_core/l1/leases.py": "A lease with a deadline owns the references: a request that never ends loses them.",
    "lmcache_core/l1/cache.py": "L1 looks up the key space, and logs the access for the eviction controller.",
    "lmcache_core/l1/index.py": "The key space is a small number in L1. The access is an entry of a log; the "
    "eviction thread reads it later and notifies the policy.",
    "lmcache_core/kernels/slot_table.py": "Hashes become slots, and each slot gets one reference more. "
    "(With lmcache-native this is compiled code.)",
    "lmcache_core/events/bus.py": "No subscriber wants the events of this lookup, so none is made.",
    "lmcache_core/contracts/samples.py": "The time it took is counted in buckets.",
}
"""What happens in a file, by its path below `src`, for the files of a lookup.  Elsewhere the first sentence of
the module says it."""
HEAD: Final = """# The life of a request

Written by `python -m scripts.request_path --markdown` from the trace of a live server with core's plugins and `fs`, in pure
Python. A test compares its files with those of a new trace; functions and counts are those of the last run. Files are in the
order in which a request first reaches them, functions in the order of their first call. Calls of functions in this repository
count; comprehensions do not.

| path | calls | functions | files | limit |
|---|---:|---:|---:|---|
{rows}

`tests/test_request_path.py` holds the limits, which only fall.
"""
SECTIONS: Final = {
    "lookup": """## A lookup that L1 answers

A scheduler asks how much of a prompt is cached (`LOOKUP`). The prompt was seen before, and all of its chunks are in L1. All
of this happens on the router's thread, without a system call but those of the socket.
""",
    "store": """## A store of four chunks

A worker asks for slots (`PREPARE_STORE`), copies its chunks into shared memory itself, and says that it has (`COMMIT_STORE`).
The chunks can be found from then on. The store controller plans which adapters get them; `fs` writes each chunk to a file on
threads of its own, and the completion ends the reference that kept the chunk in L1.
""",
    "start": """## A start

`lmcache server --plugin fs`, from the command line to `build`, which makes every part.
""",
}


class Trace(list[Call]):
    """Calls in the order in which they began, over all threads."""

    @property
    def files(self) -> list[str]:
        """In the order of the first call."""
        return list(dict.fromkeys(call.file for call in self))

    @property
    def functions(self) -> list[Call]:
        return list(dict.fromkeys(self))

    @property
    def changes(self) -> int:
        """How often the next call is in another file."""
        return sum(before.file != after.file for before, after in itertools.pairwise(self))


class Recorder:
    """A profile function.  Each thread appends to one list, which the interpreter's lock guards."""

    def __init__(self) -> None:
        self.trace: Trace | None = None
        self._places: dict[CodeType, Call | None] = {}
        self._importing: dict[int, int] = {}
        """How many modules each thread is importing, one inside of another."""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code
        thread = threading.get_ident()
        if code.co_name == "<module>":
            self._importing[thread] = self._importing.get(thread, 0) + (1 if event == "call" else -1)
            return
        if event == "return" or self.trace is None or self._importing.get(thread):
            return
        if code not in self._places:
            self._places[code] = _place(code)
        place = self._places[code]
        if place is not None:
            self.trace.append(place)

    @contextmanager
    def recording(self) -> Iterator[Trace]:
        trace = self.trace = Trace()
        try:
            yield trace
        finally:
            self.trace = None


def _place(code: CodeType) -> Call | None:
    file = Path(code.co_filename)
    if not code.co_flags & inspect.CO_OPTIMIZED or not file.is_relative_to(ROOT) or "src" not in file.parts:
        return None  # the body of a class, or not ours
    if code.co_name.startswith("<") and code.co_name != "<lambda>":
        return None  # a comprehension
    return Call(str(file.relative_to(ROOT)), code.co_qualname.replace(".<locals>", ""))


def trace_requests() -> dict[str, Trace]:
    """The paths `lookup` and `store`."""
    recorder = Recorder()

    def of_thread(frame: FrameType, event: str, argument: Any) -> None:
        if threading.current_thread().name.startswith(BESIDE):
            sys.setprofile(None)
        else:
            sys.setprofile(recorder)
            recorder(frame, event, argument)

    with ExitStack() as undo:
        folder = undo.enter_context(tempfile.TemporaryDirectory(prefix="lmcache-request-path-"))
        threading.setprofile(of_thread)
        undo.callback(threading.setprofile, None)
        server = build(_settings(Path(folder)), load_plugins(["fs"]))
        undo.callback(server.stop, 5.0)
        server.start()
        engine = undo.enter_context(FakeEngine(server.info.engine_endpoint))
        prompt = list(range(1000))
        time.sleep(SETTLE_SECONDS)  # `fs` looks at its directory
        assert engine.store(prompt, "first")
        for request in ("second", "third"):
            assert engine.lookup(prompt, request) == len(prompt) // CHUNK_TOKENS
        _settle(server)
        key = engine.key(prompt, "warm", 0, engine.whole(prompt), of_worker=False)
        with recorder.recording() as lookup:
            engine.scheduler.lookup(key)
            time.sleep(SETTLE_SECONDS)
        assert engine.scheduler.query_prefetch_status("warm") == len(prompt) // CHUNK_TOKENS
        new = list(range(5000, 5000 + STORED_CHUNKS * CHUNK_TOKENS))
        with recorder.recording() as store:
            assert engine.store(new, "new")
            _settle(server)
        return {"lookup": lookup, "store": store}


def _settings(folder: Path) -> ServerSettings:
    settings: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": free_port(),
        "chunk_size": CHUNK_TOKENS,
        "l1_size_gb": 1 / 16,
        "native": "off",
        "shm_name": f"request-path-{uuid.uuid4().hex}",
        "l2_adapter": [{"type": "fs", "base_path": str(folder / "l2")}],
    }
    return ServerSettings(**settings)


def _settle(server: Server) -> None:
    """Wait until everything that was stored is in L2, and subscribers have their events."""
    deadline = time.monotonic() + 10
    while server.status()["store"]["backlog_bytes"]:
        if time.monotonic() > deadline:
            raise TimeoutError("a store did not reach L2 within 10 s")
        time.sleep(0.01)
    time.sleep(SETTLE_SECONDS)


class _Reached(BaseException):
    """`build` was called."""


def trace_start() -> Trace:
    """The path `start`, in a process of its own."""
    child = [sys.executable, "-m", "scripts.request_path", "--start-child"]
    done = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return Trace(Call(*pair) for pair in json.loads(done.stdout))


def _start_child() -> None:
    from lmcache_core.app import cli  # the child alone starts from the command line

    recorder = Recorder()

    def until_build(frame: FrameType, event: str, argument: Any) -> None:
        recorder(frame, event, argument)
        if event == "call" and frame.f_code is build.__code__:
            raise _Reached

    with recorder.recording() as trace:
        try:
            sys.setprofile(until_build)
            cli.main(["server", "--plugin", "fs"])
        except _Reached:
            pass
        finally:
            sys.setprofile(None)
    print(json.dumps(trace))


def summary(name: str, trace: Trace) -> str:
    return (
        f"{name}: {len(trace)} calls, {len(trace.functions)} functions, {len(trace.files)} files, "
        f"{trace.changes} changes of file"
    )


def about(name: str, file: str) -> str:
    """What happens in a file: this page's sentence for a lookup, elsewhere the first one of its module."""
    module = file.partition("/src/")[2]
    if name == "lookup" and module in ABOUT:
        return ABOUT[module]
    docstring = ast.get_docstring(ast.parse((ROOT / file).read_text())) or ""
    first = " ".join(docstring.partition("\n\n")[0].split())
    return first.partition(".  ")[0].rstrip(".") + "."


def page(traces: Mapping[str, Trace]) -> str:
    """docs/internals/life-of-a-request.md."""
    rows = [
        f"| [{name}](#{_anchor(name)}) | {len(trace)} | {len(trace.functions)} | {len(trace.files)} | {_limit(BUDGETS[name])} |"
        for name, trace in traces.items()
    ]
    text = HEAD.format(rows="\n".join(rows))
    for name, trace in traces.items():
        text += f"\n{SECTIONS[name]}\n"
        for number, file in enumerate(trace.files, 1):
            functions = ", ".join(f"`{call.function}`" for call in trace.functions if call.file == file)
            text += _wrapped(f"{number}. ", f"`{file}`: {about(name, file)}") + _wrapped("    * ", functions)
    return text


def _wrapped(lead: str, text: str) -> str:
    indent = " " * (len(lead) if lead.startswith(" ") else 4)
    return textwrap.fill(text, LINE, initial_indent=lead, subsequent_indent=indent, break_long_words=False) + "\n"


def _anchor(name: str) -> str:
    return SECTIONS[name].splitlines()[0].removeprefix("## ").lower().replace(" ", "-")


def _limit(budget: Budget) -> str:
    return f"{budget.files} files" + (f", {budget.calls} calls" if budget.calls else "")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.request_path", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="print the page for the docs")
    parser.add_argument("--chain", action="store_true", help="print each call")
    parser.add_argument("--start-child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.start_child:
        _start_child()
        return
    traces = {**trace_requests(), "start": trace_start()}
    if options.markdown:
        print(page(traces), end="")
        return
    for name, trace in traces.items():
        print(summary(name, trace))
        if options.chain:
            for call in trace:
                print(f"    {call.file.partition('/')[2]:<58} {call.function}")


if __name__ == "__main__":
    main()
