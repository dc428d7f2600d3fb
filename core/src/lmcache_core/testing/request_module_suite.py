"""The laws of a request module, as tests.  A distribution runs them with two lines:

class TestAcme(RequestModuleSuite):
    offer = "acme"
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from lmcache_core.contracts.operation import Handler, HandlerMode, Operation
from lmcache_core.contracts.request_module import RequestModule
from lmcache_core.model.errors import LMCacheError
from lmcache_core.server.modules.engine_driven import open_engine_driven
from lmcache_core.server.modules.lookup import open_lookup
from lmcache_core.server.modules.management import open_management
from lmcache_core.testing.fuzzing import FUZZ
from lmcache_core.testing.module_bench import ModuleBench
from lmcache_core.testing.offer_under_test import OfferSuite, OpenableOffer
from lmcache_core.testing.wire_values import values_of
from lmcache_core.wire.codec import OperationCodec, OperationTable

THREADS = 4


class RequestModuleSuite(OfferSuite):
    """Set `offer`; override `payloads` where an operation's types are not core's."""

    kind: ClassVar[str] = "request_module"

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
        wrong); anything else is a bug that would fill the log.  Nothing stays held when everybody has left."""
        with ModuleBench() as bench:
            module = under_test.open(bench.context)
            handlers = module.handlers()
            for _ in range(8):
                handler = data.draw(st.sampled_from(handlers), label="operation")
                payload = data.draw(self.payloads(handler.operation), label="payload")
                may_wait = handler.mode is not HandlerMode.ORDERED or data.draw(st.booleans(), label="may wait")
                try:
                    bench.call(handler, *payload, may_wait=may_wait)
                except LMCacheError:
                    pass
            json.dumps(module.status())
            module.close()
            bench.everybody_leaves()
            self.assert_nothing_is_held(bench)

    @FUZZ
    @given(data=st.data())
    def test_requests_at_the_same_time_do_not_disturb_each_other(
        self, data: st.DataObject, under_test: OpenableOffer, settings: Mapping[str, Any]
    ) -> None:
        with ModuleBench() as bench:
            module = under_test.open(bench.context)
            handler = data.draw(st.sampled_from(module.handlers()), label="operation")
            payloads = data.draw(st.lists(self.payloads(handler.operation), min_size=1, max_size=4), label="payloads")
            faults: list[BaseException] = []

            def send(connection: bytes) -> None:
                for payload in payloads:
                    try:
                        bench.call(handler, *payload, connection=connection)
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
            bench.everybody_leaves()
            if faults:
                raise faults[0]
            self.assert_nothing_is_held(bench)

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

    @staticmethod
    def assert_nothing_is_held(bench: ModuleBench) -> None:
        census = bench.storage.census()
        assert census.holds
        assert (census.held, census.quarantined, census.leases) == (0, 0, 0), "holds that nobody gives back"
        bench.cache.audit()
