"""The requirements of a request module, as tests.  A distribution runs them with two lines:

class TestAcme(RequestModuleSuite):
    offer = "acme"
"""

from __future__ import annotations

import gc
import json
import logging
import reprlib
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import lmcache_client
import lmcache_core
import lmcache_devkit
from lmcache_client.codec import OperationCodec, OperationTable
from lmcache_client.errors import LMCacheError
from lmcache_client.operations import Operation
from lmcache_core.contracts.operation import Handler, HandlerMode
from lmcache_core.contracts.request_module import RequestModule
from lmcache_core.server.engine_driven_module import open_engine_driven
from lmcache_core.server.lookup_module import open_lookup
from lmcache_core.server.management_module import open_management
from lmcache_devkit.check_limit import check_seconds
from lmcache_devkit.engine_requests import (
    IN_L1,
    IN_L2,
    NOWHERE,
    REFUSED,
    SCENES,
    EngineRequest,
    Scene,
    payload_about,
)
from lmcache_devkit.fuzzing import FUZZ
from lmcache_devkit.l1_audit import audit
from lmcache_devkit.module_bench import ModuleBench
from lmcache_devkit.module_rounds import ModuleRounds
from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer
from lmcache_devkit.wire_values import values_of

THREADS = 4
ROUNDS = 12
"""Requests in each scene."""
ROUTER_SECONDS_MAX = 0.02
MEMORY_REQUESTS = 100
"""Before memory is measured first."""
SETTLE_SECONDS = 2.0
"""That threads of the module have to see that requests are over."""
MEMORY_BYTES_MAX = 2048
_OURS = tuple(module.__path__[0] for module in (lmcache_client, lmcache_core, lmcache_devkit))
every_scene = pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name.replace(" ", "-"))


def _settled_bytes(module: RequestModule, before: Sequence[int]) -> int:
    """What code of the module has allocated.  Its threads have some time to see that requests are over."""
    until = time.monotonic() + SETTLE_SECONDS
    while True:
        gc.collect()
        size = bytes_of(sys.modules[type(module).__module__].__file__ or "")
        if not before or size - before[-1] < MEMORY_BYTES_MAX or time.monotonic() >= until:
            return size
        time.sleep(0.1)


class RequestModuleSuite(OfferSuite):
    """Set `offer`; override `payloads` where an operation's types are not core's."""

    kind: ClassVar[str] = "request_module"

    def request_about(self, handler: Handler, request: EngineRequest) -> Sequence[Any]:
        """The payload with which an engine asks this of an operation.  Override it where the names of the handler's parameters
        and the types of the payload do not say enough."""
        return payload_about(handler, request)

    def payloads(self, operation: Operation) -> SearchStrategy[Sequence[Any]]:
        """What peers may send for an operation: well-typed, and otherwise anything."""
        return st.tuples(*map(values_of, operation.payload))

    @pytest.fixture
    def bench(self) -> Iterator[ModuleBench]:
        with ModuleBench() as bench:
            yield bench

    @pytest.fixture
    def module(self, under_test: OpenableOffer, bench: ModuleBench) -> Iterator[RequestModule]:
        module = under_test.open(bench.context)
        yield module
        module.close()

    # What it answers.

    def test_it_is_a_request_module_with_handlers(self, module: RequestModule) -> None:
        assert isinstance(module, RequestModule)
        handlers = module.handlers()
        assert handlers, "a module without handlers answers nothing"
        for handler in handlers:
            assert isinstance(handler, Handler)
            assert isinstance(handler.mode, HandlerMode)
            assert callable(handler.function)

    def test_no_operation_is_answered_by_two(self, module: RequestModule, bench: ModuleBench) -> None:
        """Nor is one of core's, unless the module under test is core's own."""
        own = [handler.operation for handler in module.handlers()]
        others: list[RequestModule] = [open_management(None, bench.context), open_lookup(None, bench.context)]
        others.append(open_engine_driven(None, bench.context))
        of_core = [
            handler.operation for other in others if type(other) is not type(module) for handler in other.handlers()
        ]
        OperationTable([*own, *of_core])

    def test_every_operation_travels(self, module: RequestModule) -> None:
        """Its types can be read from the wire, and its negative answer is one of its results."""
        for handler in module.handlers():
            codec = OperationCodec(handler.operation)
            assert handler.operation.name
            assert codec.decode_result(codec.negative) == handler.operation.negative

    def test_handlers_are_the_same_when_asked_again(self, module: RequestModule) -> None:
        first, second = ([(h.operation.name, h.mode) for h in module.handlers()] for _ in range(2))
        assert first == second

    # Whatever is sent.

    @FUZZ
    @given(data=st.data())
    def test_whatever_is_sent_is_answered_or_refused(
        self, data: st.DataObject, under_test: OpenableOffer, settings: Mapping[str, Any]
    ) -> None:
        """A handler returns a value of its result type, or raises an LMCacheError (ProtocolError for what the peer did
        wrong); anything else is a bug that would fill the log.  Nothing stays referenced when all have left."""
        with ModuleBench(l2=True) as bench:
            module = under_test.open(bench.context)
            handlers = module.handlers()
            for scene in SCENES:
                if scene.in_l2:
                    request = EngineRequest(scene, 0)
                    bench.place(request.tokens, scene.salt, in_l1=scene.in_l1)
            for _ in range(8):
                handler = data.draw(st.sampled_from(handlers), label="operation")
                payload = data.draw(self._requests(handler) | self.payloads(handler.operation), label="payload")
                may_wait = handler.mode is not HandlerMode.ORDERED or data.draw(st.booleans(), label="may wait")
                try:
                    _send(bench, handler, payload, may_wait=may_wait)
                except LMCacheError:
                    pass
            json.dumps(module.status())
            module.close()
            bench.all_leave()
            self.assert_nothing_is_held(bench)

    @FUZZ
    @given(data=st.data())
    def test_requests_at_the_same_time_do_not_disturb_each_other(
        self, data: st.DataObject, under_test: OpenableOffer, settings: Mapping[str, Any]
    ) -> None:
        with ModuleBench(l2=True) as bench:
            module = under_test.open(bench.context)
            handler = data.draw(st.sampled_from(module.handlers()), label="operation")
            one = self._requests(handler) | self.payloads(handler.operation)
            payloads = data.draw(st.lists(one, min_size=1, max_size=4), label="payloads")
            faults: list[BaseException] = []

            def send(connection: bytes) -> None:
                for payload in payloads:
                    try:
                        _send(bench, handler, payload, connection=connection)
                    except LMCacheError:
                        pass
                    except BaseException as fault:  # noqa: BLE001 - shown by the test
                        faults.append(fault)

            threads = [threading.Thread(target=send, args=(bytes([number]),)) for number in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            module.close()
            bench.all_leave()
            if faults:
                raise faults[0]
            self.assert_nothing_is_held(bench)

    # What an engine asks: prompts whose chunks are in L1, in L2 or nowhere, of tenants with and without a quota.

    @every_scene
    def test_slots_are_given_to_registered_workers_only(self, scene: Scene, under_test: OpenableOffer) -> None:
        """`workers.find` says None for others, and `Worker.token` is what `acquire` and `reserve` want."""
        with self._rounds(under_test, scene) as rounds:
            assert not rounds.watch.unknown_workers, (
                f"no registered worker has the tokens {rounds.watch.unknown_workers}"
            )

    @every_scene
    def test_chunks_are_asked_for_with_the_salt_of_the_request(self, scene: Scene, under_test: OpenableOffer) -> None:
        """Another one's chunks belong to another tenant."""
        with self._rounds(under_test, scene) as rounds:
            salts = rounds.watch.salts
            assert not salts, f"a request with the salt {scene.salt!r} used chunks of {sorted(salts)}"

    def test_a_salt_that_is_not_admitted_is_not_served(self, under_test: OpenableOffer) -> None:
        """`context.admits_salt` is asked for every request."""
        with self._rounds(under_test, REFUSED) as rounds:
            verbs = sorted(rounds.watch.refused)
            assert not verbs, f"{', '.join(verbs)} for a salt that `admits_salt` refuses"

    @every_scene
    def test_what_is_deferred_is_replied_to(self, scene: Scene, under_test: OpenableOffer) -> None:
        """Whether chunks are found or not: an engine must not wait for the time-out."""
        with self._rounds(under_test, scene) as rounds:
            waiting = sorted({each.operation for each in rounds.unanswered()})
            assert not waiting, f"{', '.join(waiting)}: a deferred call was not replied to; the chunks are {scene.name}"

    def test_a_request_keeps_its_own_lookup(self, under_test: OpenableOffer) -> None:
        """Under the request id of the engine, a lookup of the module takes the place of the engine's, and ending it releases
        what a worker is about to read."""
        with self._rounds(under_test, IN_L1) as rounds, self._rounds(under_test, IN_L2) as from_l2:
            names = sorted(rounds.watch.taken_over | from_l2.watch.taken_over)
            assert not names, (
                f"{', '.join(names)}: looks up under the engine's request id and ends it; use an id of its own"
            )

    @every_scene
    def test_no_lock_is_held_while_a_lookup_is_answered(self, scene: Scene, under_test: OpenableOffer) -> None:
        """`on_lookup` may call its function at once, on any thread."""
        with self._rounds(under_test, scene, 1) as rounds:
            names = sorted(rounds.watch.stuck)
            assert not names, (
                f"{', '.join(names)}: the function given to on_lookup waits for a lock that its caller holds"
            )

    @every_scene
    def test_what_is_held_does_not_grow_with_requests(self, scene: Scene, under_test: OpenableOffer) -> None:
        """Of references and lookups, while the worker stays and no deadline passes."""
        with self._rounds(under_test, scene, 0) as rounds:
            held, leases = [], []
            for _ in range(4):
                rounds.run(scene, ROUNDS)
                rounds.unanswered()
                held.append(len(rounds.watch.held))
                leases.append(rounds.bench.storage.state_counts().leases)
            assert not _grows(held), (
                f"{held} references are open after every {ROUNDS} requests: release, publish or discard them"
            )
            assert not _grows(leases), f"{leases} chunks are held after every {ROUNDS} requests: end the lookups"

    def test_what_runs_on_the_routers_thread_does_not_wait(self, under_test: OpenableOffer) -> None:
        """Every engine waits for that thread.  Of many calls the fastest counts: a busy machine is not a slow handler."""
        with self._rounds(under_test, IN_L1) as rounds:
            rounds.run(NOWHERE, ROUNDS)
            slow = {name: min(seconds) for name, seconds in rounds.seconds.items()}
            slow = {name: seconds for name, seconds in slow.items() if seconds > ROUTER_SECONDS_MAX}
            assert not slow, f"on the router's thread, of {2 * ROUNDS} calls the fastest took {_milliseconds(slow)}"

    @check_seconds(120)
    def test_memory_does_not_grow_with_requests(self, under_test: OpenableOffer) -> None:
        """Requests come and go for months.  Each has another id, prompt and connection.  What code of core has allocated is
        left out, so that nothing but the module's own is counted."""
        sizes: list[int] = []
        with self._rounds(under_test, IN_L1, 0) as rounds:
            logging.disable()  # test runners keep every record
            tracemalloc.start()
            try:
                # Dictionaries double: one grows in between.  What does not grow again was another thread's of this process.
                for requests in (MEMORY_REQUESTS, 3 * MEMORY_REQUESTS, 3 * MEMORY_REQUESTS):
                    if len(sizes) == 2 and sizes[1] - sizes[0] < MEMORY_BYTES_MAX:
                        break
                    rounds.run(IN_L1, requests)
                    rounds.unanswered()
                    rounds.deferred.clear()
                    rounds.bench.pass_time(10_000)
                    rounds.bench.empty()
                    sizes.append(_settled_bytes(rounds.module, sizes))
            finally:
                tracemalloc.stop()
                logging.disable(logging.NOTSET)
        grown = min(late - early for early, late in pairwise(sizes))
        assert grown < MEMORY_BYTES_MAX, f"{grown} bytes more after {3 * MEMORY_REQUESTS} further requests"

    # What operators see, and the end.

    def test_its_status_can_be_shown(self, module: RequestModule) -> None:
        assert json.loads(json.dumps(module.status())) == module.status()

    def test_close_may_come_twice_and_without_any_request(self, module: RequestModule) -> None:
        module.close()
        module.close()

    def test_opening_and_closing_leaves_no_thread_behind(self, under_test: OpenableOffer, bench: ModuleBench) -> None:
        before = threading.active_count()
        for _ in range(50):
            under_test.open(bench.context).close()
        assert threading.active_count() <= before

    def _rounds(self, under_test: OpenableOffer, scene: Scene, rounds: int = ROUNDS) -> ModuleRounds:
        """The state after `rounds` requests."""
        opened = ModuleRounds(under_test.open, self.request_about)
        opened.run(scene, rounds)
        return opened

    def _requests(self, handler: Handler) -> SearchStrategy[Sequence[Any]]:
        return st.sampled_from(SCENES).map(lambda scene: self.request_about(handler, EngineRequest(scene, 0)))

    @staticmethod
    def assert_nothing_is_held(bench: ModuleBench) -> None:
        counts = bench.storage.state_counts()
        assert counts.is_balanced
        assert (counts.held, counts.quarantined, counts.leases) == (0, 0, 0), "references that were not released"
        audit(bench.cache)


def _send(bench: ModuleBench, handler: Handler, payload: Sequence[Any], **how: Any) -> None:
    """Raises LMCacheError as the handler does, and AssertionError for anything else."""
    try:
        bench.call(handler, *payload, **how)
    except LMCacheError:
        raise
    except Exception as error:
        raise AssertionError(
            f"{handler.operation.name}({', '.join(map(reprlib.repr, payload))}): {type(error).__name__}: {error}; a handler "
            "returns a value of its result type, and raises ProtocolError for what the peer did wrong"
        ) from error


def bytes_of(module_file: str) -> int:
    """What is allocated by this file, or by code that is neither the server's nor the suite's; tracemalloc is running."""
    traces = tracemalloc.take_snapshot().traces
    places = ((trace.traceback[0].filename, trace.size) for trace in traces)
    return sum(size for file, size in places if file == module_file or not file.startswith((*_OURS, "<")))


def _grows(counts: Sequence[int]) -> bool:
    return all(later > earlier for earlier, later in pairwise(counts))


def _milliseconds(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{1000 * each:.0f} ms ({name})" for name, each in seconds.items())
