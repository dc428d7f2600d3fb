"""A collector that redirects, drips, floods or hangs: what is pushed to it is lost, the thread that pushes is not."""

from __future__ import annotations

import gc
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest
from requests.exceptions import ChunkedEncodingError, ConnectionError, RequestException, TooManyRedirects

from lmcache_observability import collector_session as module
from lmcache_observability.collector_session import CollectorSession, collector_session
from lmcache_observability.metrics.otlp_push import OtlpPush
from lmcache_observability.tracing.otlp_spans import OtlpSpans
from lmcache_observability.tracing.settings import TracingSettings
from plugins.observability.tests.metrics.test_otlp_push import FAMILIES
from plugins.observability.tests.server_stand_in import ServerStandIn
from plugins.observability.tests.tracing.test_otlp_spans import spans

Say = Callable[[socket.socket, threading.Event], None]
LIMIT_SECONDS = 0.3
FOR_EVER_SECONDS = 30.0


class Collector:
    """Reads the head of each request, and then does as scripted."""

    def __init__(self, say: Say) -> None:
        self._say, self._over = say, threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.requests = 0
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Collector:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(65536)
                self.requests += 1
                self._say(connection, self._over)
            except OSError:
                pass  # it was hung up, as is the point


def drip_head(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while not over.wait(0.02):
        connection.sendall(b"X")


def drip_body(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not over.wait(0.02):
        connection.sendall(b"X")


def hang(connection: socket.socket, over: threading.Event) -> None:
    over.wait(FOR_EVER_SECONDS)


def flood(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not over.is_set():
        connection.sendall(bytes(65536))


def redirect(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(
        b"HTTP/1.1 307 Moved\r\nLocation: /v1/elsewhere\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )


def take(connection: socket.socket, over: threading.Event) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")


@pytest.fixture
def session() -> Iterator[CollectorSession]:
    with CollectorSession() as session:
        yield session


@pytest.mark.parametrize("say", [drip_head, drip_body, hang])
def test_a_request_is_over_within_its_time(session: CollectorSession, say: Say) -> None:
    """Each of these would last for hours; how long it takes is bounded by the test's own limit."""
    with Collector(say) as collector:
        done = threading.Event()

        def ask() -> None:
            with pytest.raises(RequestException):
                session.post(collector.endpoint, data=b"x", timeout=LIMIT_SECONDS)
            done.set()

        thread = threading.Thread(target=ask)
        thread.start()
        assert done.wait(FOR_EVER_SECONDS / 2)
        thread.join(10)


def test_an_answer_without_end_is_not_kept(session: CollectorSession) -> None:
    with Collector(flood) as collector, pytest.raises(ChunkedEncodingError, match="more than 1048576 bytes"):
        session.post(collector.endpoint, data=b"x", timeout=10)


def test_a_redirect_is_not_a_success_and_is_not_followed(session: CollectorSession) -> None:
    with Collector(redirect) as collector:
        with pytest.raises(TooManyRedirects, match=r"answers 307 and points to '/v1/elsewhere'; give its own address"):
            session.post(collector.endpoint, data=b"x", timeout=10)
        assert collector.requests == 1


def test_what_is_taken_is_taken(session: CollectorSession) -> None:
    with Collector(take) as collector:
        for _ in range(3):
            answer = session.post(collector.endpoint, data=b"x", timeout=10)
            assert (answer.status_code, answer.text) == (200, "ok")


def test_a_connection_is_closed_with_its_duplicate(session: CollectorSession) -> None:
    with Collector(take) as collector:
        for _ in range(5):
            session.post(collector.endpoint, data=b"x", timeout=10)
        session.close()
        assert session._sockets._there == set()
    with pytest.raises(ConnectionError):
        session.post(collector.endpoint, data=b"x", timeout=1)


@pytest.mark.parametrize("say", [redirect, drip_head])
def test_metrics_that_no_collector_took_count_as_failed(say: Say, caplog: pytest.LogCaptureFixture) -> None:
    with Collector(say) as collector:
        push = OtlpPush(collector.endpoint, 0.02, LIMIT_SECONDS)
        push.start(lambda: FAMILIES, {})
        wait_until(lambda: push.pushes["failed"] >= 2)
        push.close()
        assert push.pushes["ok"] == 0
        assert not push._thread.is_alive()
    assert "metrics are not pushed" in caplog.text


@pytest.mark.parametrize("say", [redirect, drip_body])
def test_spans_that_no_collector_took_are_counted(say: Say) -> None:
    with Collector(say) as collector:
        given = {"otlp_endpoint": collector.endpoint, "export_timeout_seconds": LIMIT_SECONDS}
        sink = OtlpSpans(TracingSettings.model_validate(given), ServerStandIn.info)
        sink.send(spans())
        wait_until(lambda: sink.failed_spans == len(spans()))
        sink.close()
        assert not sink._thread.is_alive()


def test_who_brings_credentials_brings_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    made = collector_session()
    assert isinstance(made, CollectorSession)
    made.close()
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "acme")
    assert collector_session() is None


def test_a_request_without_a_timeout_has_one(session: CollectorSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECONDS", LIMIT_SECONDS)
    with Collector(drip_body) as collector, pytest.raises(RequestException):
        session.post(collector.endpoint, data=b"x")


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Batch:
    """What an exporter has to send."""


def export(session: CollectorSession, url: str, batch: Batch) -> None:
    """As OpenTelemetry's exporters do: the error is kept by something that its own traceback leads to."""
    kept: list[RequestException] = []
    try:
        session.post(url, data=b"x", timeout=LIMIT_SECONDS)
    except RequestException as error:
        kept.append(error)
    assert kept
    assert batch


def test_what_could_not_be_sent_is_freed_without_a_collection_of_garbage() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    session, batch = CollectorSession(), Batch()
    first = weakref.ref(batch)
    gc.disable()
    try:
        export(session, url, batch)
        del batch
        assert first() is not None, "else the test shows nothing"
        export(session, url, Batch())
        assert first() is None
    finally:
        gc.enable()
