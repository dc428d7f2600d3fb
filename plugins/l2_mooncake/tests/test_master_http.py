"""What is made of a master's answers over HTTP, and of its address."""

from __future__ import annotations

import ctypes
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lmcache_core import HEADER_BYTES, ObjectKey, SystemClock, Usage
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key
from lmcache_l2_mooncake import master as module
from lmcache_l2_mooncake.codes import MooncakeError
from lmcache_l2_mooncake.listing import HeaderPages, Listing
from lmcache_l2_mooncake.master import MasterAnswerError, MasterHttp, is_reachable
from lmcache_l2_mooncake.store_client import StoreClient, Transfer
from lmcache_object_remote import object_name

METRICS = b"""# TYPE master_allocated_bytes gauge
master_allocated_bytes 4.096e+03
master_total_capacity_bytes{segment="all"} 8192
master_key_count 3
"""


@contextmanager
def serving(answers: Mapping[str, bytes]) -> Iterator[str]:
    """An HTTP server with these bodies; 404 for the rest."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def test_usage_is_read_from_the_metrics() -> None:
    with serving({"/metrics": METRICS}) as url:
        assert MasterHttp(url).usage() == Usage(4096, 8192, 3)


@pytest.mark.parametrize("body", [b"", b"master_key_count 3\n", b"\xff\xfe", METRICS.replace(b"8192", b"e9")])
def test_metrics_that_say_something_else_are_not_usage(body: bytes) -> None:
    with serving({"/metrics": body}) as url, pytest.raises(MasterAnswerError, match="how full the store is"):
        MasterHttp(url).usage()


def test_a_master_that_does_not_answer_is_named() -> None:
    with serving({}) as url:
        with pytest.raises(MasterAnswerError, match=r"/get_all_keys did not answer .*404.*check master_metrics_url"):
            MasterHttp(url).names("")
        gone = url
    with pytest.raises(MasterAnswerError, match="did not answer"):
        MasterHttp(gone).usage()


def test_an_endless_answer_is_not_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_BYTES_MAX", 100)
    with serving({"/get_all_keys": b"x" * 101}) as url, pytest.raises(MasterAnswerError, match="more than 100 bytes"):
        MasterHttp(url).names("")


def test_names_are_those_of_the_prefix_in_order() -> None:
    with serving({"/get_all_keys": "b/2\na/1\nb/1\nkäse\n\n".encode()}) as url:
        assert MasterHttp(url).names("b/") == ["b/1", "b/2"]
        assert MasterHttp(url).names("kä") == ["käse"]


def test_where_a_master_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert is_reachable(f"127.0.0.1:{port}")
        assert is_reachable(f"[127.0.0.1]:{port}")
    assert not is_reachable(f"127.0.0.1:{port}")
    assert not is_reachable("127.0.0.1:99999")
    assert is_reachable("etcd://10.0.0.1:2379;10.0.0.2:2379")


class TestListing:
    """Pages, from names and header pages."""

    @pytest.fixture
    def objects(self) -> dict[str, bytes]:
        """Ours, and such as only look so."""
        memory = BorrowedMemory(4 << 20)
        keys = [object_key(number) for number in range(200)]
        held = {object_name("p/", key): bytes(memory.sealed(key, b"x").view) for key in keys}
        names = list(held)
        held[names[0]], held[names[1]] = held[names[1]], held[names[0]]
        held[names[2]] = b"short"
        held[names[3]] = b"\0" * 2 * HEADER_BYTES
        return {**held, "p/other": b"z" * HEADER_BYTES, "q/" + names[4][2:]: held[names[4]]}

    @pytest.mark.parametrize("limit", [1, 7, 64, 500])
    def test_pages_name_what_is_there_and_ours_once(self, objects: dict[str, bytes], limit: int) -> None:
        with serving({"/get_all_keys": "\n".join(objects).encode()}) as url:
            listing = listing_of(url, objects)
            found: list[ObjectKey] = []
            cursor, pages = None, 0
            while pages == 0 or cursor is not None:
                page = listing.page(cursor, limit)
                assert len(page.keys) <= limit
                found += page.keys
                cursor, pages = page.cursor, pages + 1
            assert sorted(key.object_id for key in found) == sorted(object_key(n).object_id for n in range(4, 200))

    @pytest.mark.parametrize("cursor", ["", "p/", "p/other", "../../etc/passwd", "q/x"])
    def test_a_foreign_cursor_is_refused(self, objects: dict[str, bytes], cursor: str) -> None:
        with serving({"/get_all_keys": b""}) as url, pytest.raises(MooncakeError, match="none that this adapter gave"):
            listing_of(url, objects).page(cursor, 10)


def listing_of(url: str, objects: dict[str, bytes]) -> Listing:
    class Ranges:
        def get_into_ranges(
            self, addresses: list[int], names: list[list[str]], _to: object, _from: object, sizes: list[list[list[int]]]
        ) -> list[list[list[int]]]:
            ((name,),), (address,), (((size,),),) = names, addresses, sizes
            data = objects[name]
            if len(data) < size:
                return [[[-600]]]
            ctypes.memmove(address, data, size)
            return [[[size]]]

    client = StoreClient(Ranges())
    assert client.reads_ranges

    def read(wanted: list[Transfer]) -> list[int]:
        return list(client.starts(wanted))

    return Listing(MasterHttp(url), "p/", HeaderPages(), read, SystemClock())  # type: ignore[arg-type]
