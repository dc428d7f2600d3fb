"""Conformance checks of a service, as tests.  A distribution runs them with two lines:

class TestAcme(ServiceSuite):
    offer = "acme"
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from lmcache_client.errors import ConfigError
from lmcache_core.contracts.conditions import Condition
from lmcache_core.contracts.http_route import PluginRoute, RouteCheck
from lmcache_core.contracts.l1_memory import MemoryRegion
from lmcache_core.contracts.request_module import RequestModule
from lmcache_core.contracts.residency import ResidencyFeed
from lmcache_core.contracts.server_control import ServerControl
from lmcache_core.contracts.server_view import ServerView
from lmcache_core.contracts.service import Service
from lmcache_core.contracts.storage import Storage
from lmcache_core.contracts.transfer_channel import TransferChannel
from lmcache_core.controllers.supervisor import Supervisor
from lmcache_devkit.check_limit import CheckLimit
from lmcache_devkit.fake_server_view import FakeServerView
from lmcache_devkit.offer_under_test import OfferSuite, OpenableOffer

CALL_SECONDS = 5.0
"""For calls that must return at once."""
CLOSE_SECONDS = 20.0
END_SECONDS = 2.0
"""How long threads and processes may outlive `close`."""
DRAIN_SECONDS = 30.0
STATUS_BYTES_MAX = 1 << 20


@dataclass(slots=True)
class FakeServiceContext:
    """A `ServiceContext` whose answers are attributes that a test may change."""

    view: ServerView | None = None
    """What `server` is; while it is None there is no server yet."""
    operator: ServerControl | None = None
    """What `control` is."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What `configuration` and `value_at` answer from."""
    variables: Mapping[str, str] = field(default_factory=dict)
    feeds: Sequence[ResidencyFeed] = ()
    transfer_channels: Sequence[str] = ()
    modules: Mapping[str, RequestModule] = field(default_factory=dict)

    @property
    def storage(self) -> Storage:
        raise RuntimeError("context.storage was read while services are opened; read it in start() or later")

    @property
    def region(self) -> MemoryRegion:
        raise RuntimeError("a fake server has no memory")

    def open_transfer_channel(self, name: str, host: str) -> TransferChannel:
        raise ConfigError(f"no plugin offers a transfer channel '{name}'")

    @property
    def server(self) -> ServerView:
        if self.view is None:
            raise RuntimeError("context.server was read while services are opened; read it in start() or later")
        return self.view

    @property
    def control(self) -> ServerControl:
        if self.operator is None:
            raise RuntimeError("context.control was read while services are opened; read it in start() or later")
        return self.operator

    def http_routes(self, check: RouteCheck) -> Sequence[PluginRoute]:
        return ()

    def configuration(self) -> Mapping[str, Any]:
        return self.settings

    def value_at(self, place: str) -> Any:
        value: Any = self.settings
        for step in place.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
        return value

    def environment(self) -> dict[str, str]:
        return dict(self.variables)

    def masking(self, secrets: Collection[str] = ()) -> Callable[[str], str]:
        def mask(text: str) -> str:
            for secret in filter(None, secrets):
                text = text.replace(secret, "**********")
            return text

        return mask


class ServiceSuite(OfferSuite):
    """Set `offer`; override `context` where the service reads more of the server than a default one says."""

    kind: ClassVar[str] = "service"

    @pytest.fixture
    def context(self) -> FakeServiceContext:
        return FakeServiceContext(variables={"PATH": os.environ.get("PATH", os.defpath)})

    @pytest.fixture
    def service(self, under_test: OpenableOffer, context: FakeServiceContext) -> Iterator[Service]:
        """Opened, while there is no server yet."""
        service = under_test.open(context)
        yield service
        with _in_time("close", CLOSE_SECONDS):
            service.close()

    def test_it_opens_as_a_service_before_there_is_a_server(self, service: Service) -> None:
        """`context.server` raises until all services are opened."""
        assert isinstance(service, Service)

    def test_its_endpoints_are_addresses_by_name(self, service: Service) -> None:
        for name, address in service.endpoints.items():
            assert isinstance(name, str), f"{name!r} is not a name of an endpoint"
            assert isinstance(address, str), f"endpoint {name}: {address!r} is not text"
            assert "://" in address, f"endpoint {name}: {address!r} is not an address"

    def test_its_status_is_json_at_any_time(self, under_test: OpenableOffer, context: FakeServiceContext) -> None:
        """Before the start, while it runs, and when all is over."""
        service = under_test.open(context)
        _check_status(service)
        with _running(service, context):
            _check_status(service)
        _check_status(service)

    def test_its_conditions_are_conditions_at_any_time(
        self, under_test: OpenableOffer, context: FakeServiceContext
    ) -> None:
        service = under_test.open(context)
        _check_conditions(service)
        with _running(service, context):
            _check_conditions(service)
        _check_conditions(service)

    def test_threads_are_asked_at_once(self, under_test: OpenableOffer, context: FakeServiceContext) -> None:
        """`status` and `conditions` on several threads, while it runs."""
        service = under_test.open(context)
        failed: list[BaseException] = []

        def ask() -> None:
            try:
                for _ in range(50):
                    _check_status(service)
                    _check_conditions(service)
            except BaseException as error:  # noqa: BLE001 - shown by the thread of the test
                failed.append(error)

        with _running(service, context):
            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert not failed, f"on another thread: {failed[0]}"

    def test_no_thread_fails(self, under_test: OpenableOffer, context: FakeServiceContext) -> None:
        """Under a supervisor, which counts what they raise."""
        service = under_test.open(context)
        with _running(service, context) as supervisor:
            time.sleep(0.3)
        assert {name: thread for name, thread in supervisor.status().items() if thread["restarts"]} == {}  # type: ignore[index]

    def test_close_ends_what_it_began(self, under_test: OpenableOffer, context: FakeServiceContext) -> None:
        """Threads, processes and open files: what is left would stay with the server."""
        self._check_end(under_test, context, DRAIN_SECONDS)

    def test_close_ends_what_it_began_without_a_drain(
        self, under_test: OpenableOffer, context: FakeServiceContext
    ) -> None:
        self._check_end(under_test, context, 0.0)

    def _check_end(self, under_test: OpenableOffer, context: FakeServiceContext, seconds: float) -> None:
        _once(under_test, context, seconds)  # what a library keeps for the process is opened now
        files, threads, children = _open_files(), set(threading.enumerate()), _children()
        _once(under_test, context, seconds)
        end = time.monotonic() + END_SECONDS
        while (left := _left(files, threads, children)) and time.monotonic() < end:
            time.sleep(0.01)
        assert not left, f"what outlives close: {', '.join(left)}"

    def test_close_without_start_gives_everything_back(
        self, under_test: OpenableOffer, context: FakeServiceContext
    ) -> None:
        """As when the server cannot be built: it can be opened again at once, on the same addresses."""
        for _ in range(2):
            service = under_test.open(context)
            with _in_time("close", CLOSE_SECONDS):
                service.close()

    def test_it_can_be_opened_again(self, under_test: OpenableOffer, context: FakeServiceContext) -> None:
        """After a whole life, as when a server is restarted."""
        for _ in range(2):
            service = under_test.open(context)
            with _running(service, context):
                pass
            context.view = None


@contextmanager
def _running(service: Service, context: FakeServiceContext, seconds: float = 0.0) -> Iterator[Supervisor]:
    """What a server does with it, from the start to the end."""
    context.view = context.view or FakeServerView()
    supervisor = Supervisor()
    with _in_time("start"):
        service.start(context.server.info)
    for name, run in service.threads().items():
        supervisor.start(name, run)
    try:
        yield supervisor
    finally:
        with _in_time("stop"):
            service.stop(seconds)
        with _in_time("close", CLOSE_SECONDS):
            service.close()
        left = supervisor.join(END_SECONDS)
    assert not left, f"threads that do not return after close: {', '.join(left)}"


def _once(under_test: OpenableOffer, context: FakeServiceContext, seconds: float) -> None:
    with _running(under_test.open(context), context, seconds):
        time.sleep(0.1)
    context.view = None


def _in_time(call: str, seconds: float = CALL_SECONDS) -> AbstractContextManager[None]:
    """Interrupts one call of the service that does not return."""
    return CheckLimit().limit(seconds, f"{call}, where nothing may block: it")


def _check_status(service: Service) -> None:
    status = service.status()
    assert len(json.dumps(dict(status))) < STATUS_BYTES_MAX, "the status is larger than a page can show"


def _check_conditions(service: Service) -> None:
    for condition in service.conditions():
        assert isinstance(condition, Condition), f"{condition!r} is not a Condition"
        assert condition.remedy, f"{condition.name}: it says no remedy"


def _open_files() -> dict[str, str]:
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the one that lists them
    return found


def _children() -> set[str]:
    found: set[str] = set()
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                found |= set(file.read().split())
        except OSError:
            continue  # a thread that has ended
    return found


def _left(files: Mapping[str, str], threads: Collection[threading.Thread], children: Collection[str]) -> list[str]:
    return [
        *(f"thread {each.name}" for each in threading.enumerate() if each not in threads),
        *(f"process {pid}" for pid in _children() if pid not in children),
        *(f"file {target}" for number, target in _open_files().items() if number not in files),
    ]
