"""The store server among clients that do what they should not, and disks that fill."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from lmcache_core import ResourceError
from lmcache_l2_lm.frames import REQUEST_BYTES, Verb
from lmcache_l2_lm.store_server import files, server
from lmcache_l2_lm.store_server.files import FileMedium
from lmcache_l2_lm.store_server.memory import MAPPED_BYTES
from lmcache_l2_lm.store_server.values import ENTRY_BYTES, PIECE_BYTES
from plugins.l2_lm.tests.running import FORM, HOST, KEY, Client, Running, running

OTHER: Final = b"m@1@0@0b@uint8"
VALUE: Final = bytes(range(256)) * 4096
EVIL: Final = struct.pack("9i150s", 1, 2, 1, 2, 0, 0, 0, 0, 0, KEY.ljust(150)) + b"no"
"""A PUT, which a web page has a browser send."""


def eventually(is_so: object, seconds: float = 10.0) -> None:
    assert callable(is_so)
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def store_process(
    *options: str, before: Callable[[], object] | None = None
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`lmcache store-server` and its port.  `before`: what its process does first."""
    command = [sys.executable, "-m", "lmcache_core", "store-server", HOST, "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=before) as process:
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "listening on" in line)
            yield process, int(line.split(f"lm://{HOST}:")[1].split()[0])
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.communicate()


# --- what a client sends


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("9i150s", 9, 0, 1, 2, 0, 0, 0, 0, 0, KEY.ljust(150)),
        struct.pack("9i150s", 1, -5, 1, 2, 0, 0, 0, 0, 0, KEY.ljust(150)),
        struct.pack("9i150s", 2, 0, 1, 2, 0, 0, 0, 0, 0, b"no key".ljust(150)),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".ljust(REQUEST_BYTES),
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 188\r\n\r\n" + EVIL,
        b"POST / HTTP/1.1\r\nX:".ljust(REQUEST_BYTES - 4, b"x") + b"\r\n\r\n" + EVIL,
    ],
)
def test_what_cannot_be_closes_that_connection_and_no_other(store: Running, data: bytes) -> None:
    with Client(store.port) as good, Client(store.port) as bad:
        good.put(KEY, VALUE)
        bad.socket.sendall(data)
        assert bad.is_closed
        assert good.get() == (FORM, VALUE), "nor does what is behind it count"
    with Client(store.port) as later:
        assert later.get() == (FORM, VALUE)


def test_half_a_message_does_not_keep_others_waiting_and_is_not_kept(store: Running) -> None:
    with Client(store.port) as good, ExitStack() as halves:
        for count in (1, REQUEST_BYTES - 1):
            halves.enter_context(Client(store.port)).socket.sendall(b"\1" * count)
        half = halves.enter_context(Client(store.port))
        half.send(Verb.PUT, length=len(VALUE), value=VALUE[:-1])
        good.put(OTHER, b"x")
        assert good.exists(OTHER)
        assert not good.exists(KEY)
        eventually(lambda: store.values.stats().used_bytes == len(VALUE) + 1 + 2 * ENTRY_BYTES)  # space is kept for it
    eventually(lambda: store.values.stats().used_bytes == 1 + ENTRY_BYTES)


def test_a_value_that_breaks_off_leaves_the_old_one(store: Running) -> None:
    with Client(store.port) as good, Client(store.port) as bad:
        good.put(KEY, b"old")
        assert good.exists()
        bad.send(Verb.PUT, length=100, value=b"new")
        bad.socket.close()
        eventually(lambda: store.values.stats().used_bytes == 3 + ENTRY_BYTES)
        assert good.get() == (FORM, b"old")


def test_who_stays_in_the_middle_of_a_message_is_closed(store: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FRAME_SECONDS", 0.1)
    with Client(store.port) as header, Client(store.port) as value, Client(store.port) as idle:
        header.socket.sendall(b"\1")
        value.send(Verb.PUT, length=10, value=b"x")
        assert header.is_closed
        assert value.is_closed
        assert not idle.exists(), "one that sends nothing may stay"


def test_who_does_not_take_its_answer_is_closed_and_keeps_no_space(
    store: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FRAME_SECONDS", 0.1)
    large = bytes(64 << 20)
    with Client(store.port) as good, Client(store.port) as frozen:
        good.put(KEY, large)
        assert good.exists()
        monkeypatch.setattr(server, "SLOWEST", 1 << 40)
        frozen.send(Verb.GET)
        frozen.answer()
        good.put(KEY, b"new")
        assert good.get() == (FORM, b"new")
        eventually(lambda: store.values.stats().used_bytes == 3 + ENTRY_BYTES)


def test_who_announces_much_and_sends_nothing_takes_no_space_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STALL_SECONDS", 1)
    with running(64 << 20) as store, Client(store.port) as good, ExitStack() as opened:
        for number in range(40):
            good.put(b"m@1@0@%02x@uint8" % number, VALUE)
        assert good.exists(b"m@1@0@27@uint8")
        frozen = [opened.enter_context(Client(store.port)) for _ in range(3)]
        for number, client in enumerate(frozen):
            client.send(Verb.PUT, b"f@1@0@%02x@uint8" % number, 15 << 20, b"x")
        time.sleep(0.5)
        assert all(good.exists(b"m@1@0@%02x@uint8" % number) for number in range(40))
        assert store.values.stats().used_bytes <= 40 * (len(VALUE) + ENTRY_BYTES) + 3 * (PIECE_BYTES + ENTRY_BYTES)
        assert all(client.is_closed for client in frozen)
        eventually(lambda: store.values.stats().used_bytes == 40 * (len(VALUE) + ENTRY_BYTES))


def test_who_reads_nothing_of_its_answer_is_closed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STALL_SECONDS", 1)
    large = bytes(64 << 20)
    with running() as store, Client(store.port) as good, Client(store.port) as frozen:
        good.put(KEY, large)
        assert good.exists()
        frozen.send(Verb.GET)
        frozen.answer()
        good.put(KEY, b"new")
        assert good.get() == (FORM, b"new")
        eventually(lambda: store.values.stats().used_bytes == 3 + ENTRY_BYTES)


def test_a_value_with_more_than_its_share_is_refused_and_the_connection_goes_on() -> None:
    with running(8 << 20) as store, Client(store.port) as client:
        client.put(OTHER, VALUE)
        client.put(KEY, VALUE + VALUE)
        assert not client.exists()
        assert client.get(OTHER) == (FORM, VALUE)
        client.put(KEY, VALUE + VALUE[: len(VALUE) - ENTRY_BYTES])
        assert client.exists()
        assert store.values.counts["refused"] == 1


def test_a_value_for_which_no_space_is_left_on_its_way_is_refused() -> None:
    long = VALUE * 7
    with running(32 << 20) as store, ExitStack() as opened:
        halves = [opened.enter_context(Client(store.port)) for _ in range(5)]
        names = [b"h@1@0@%02x@uint8" % number for number in range(5)]
        sent = [5 << 20, 5 << 20, 5 << 20, 3 << 20, 3 << 20]
        for half, name, count in zip(halves, names, sent, strict=True):
            half.send(Verb.PUT, name, len(long), long[:count])
        held = 3 * len(long) + 2 * PIECE_BYTES + 5 * ENTRY_BYTES
        assert held > 29 << 20, "what the fourth is to have is more than is left"
        eventually(lambda: store.values.stats().used_bytes == held)
        for half, name, count in zip(halves[3::-1], names[3::-1], sent[3::-1], strict=True):
            half.socket.sendall(long[count:])
            assert half.exists(name) is (name != names[3])
        assert store.values.counts["refused"] == 1
        assert halves[0].get(names[0]) == (FORM, long)


def test_a_value_stays_as_it_was_while_it_is_sent(store: Running) -> None:
    large = bytes(32 << 20)
    with Client(store.port) as good, Client(store.port) as slow:
        good.put(KEY, large)
        assert good.exists()
        slow.send(Verb.GET)
        answer = slow.answer()
        good.put(KEY, b"\1" * len(large))
        assert good.exists()
        assert slow.take(answer.length) == large
        assert slow.get() == (FORM, b"\1" * len(large))


def test_a_value_without_space_is_refused_and_the_connection_goes_on() -> None:
    with running(1 << 20) as store, Client(store.port) as client:
        client.put(KEY, b"old")
        assert client.exists()
        client.put(KEY, bytes(2 << 20))
        assert not client.exists(), "what the client meant to replace is not served"
        client.put(OTHER, b"x")
        assert client.get(OTHER) == (FORM, b"x")
        assert store.values.counts["refused"] == 1


def test_many_empty_values_are_bounded_too() -> None:
    with running(100 * ENTRY_BYTES) as store, Client(store.port) as client:
        for number in range(1_000):
            client.put(b"m@1@0@%04x@uint8" % number, b"")
        assert client.exists(b"m@1@0@%04x@uint8" % 999)
        assert store.values.stats() == (100, 100 * ENTRY_BYTES)


def test_beyond_its_connections_the_longest_unused_one_goes() -> None:
    with running(connections_max=3) as store, ExitStack() as opened:
        first, second, third = (opened.enter_context(Client(store.port)) for _ in range(3))
        for client in (second, first, third):
            assert not client.exists()
            time.sleep(0.3)  # its thread waits again
        fourth = opened.enter_context(Client(store.port))
        assert not fourth.exists()
        assert second.is_closed
        assert not first.exists()
        assert not third.exists()


def test_where_all_connections_are_busy_a_new_one_is_closed() -> None:
    with running(connections_max=2) as store, ExitStack() as opened:
        busy = [opened.enter_context(Client(store.port)) for _ in range(2)]
        for number, client in enumerate(busy):
            client.send(Verb.PUT, b"m@1@0@0%d@uint8" % number, 2, b"x")
        eventually(lambda: store.values.stats().used_bytes == 2 * (2 + ENTRY_BYTES))
        assert opened.enter_context(Client(store.port)).is_closed
        busy[0].socket.sendall(b"y")
        assert busy[0].get(b"m@1@0@00@uint8") == (FORM, b"xy")


@pytest.mark.parametrize("length", [100_000, MAPPED_BYTES])
def test_clients_of_few_keys_see_whole_values_only(length: int) -> None:
    """Values go, and their memory is used again, while others are sent."""
    wrong: list[object] = []

    def work(fill: int) -> None:
        with Client(store.port) as client:
            for number in range(40):
                key = b"m@1@0@%02x@uint8" % (number % 12)
                client.put(key, bytes([fill]) * (length + number % 2))
                found = client.get(key)
                if found is not None and (len(set(found[1])) != 1 or len(found[1]) - length not in (0, 1)):
                    wrong.append(len(found[1]))

    with running(8 * length) as store:
        threads = [threading.Thread(target=work, args=(fill,)) for fill in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.values.counts["put"] > 100
        assert store.values.counts["evicted"]
    assert not wrong


# --- files


def test_files_are_found_by_the_next_server_the_newest_of_each_key(tmp_path: Path) -> None:
    with running(folder=tmp_path) as store, Client(store.port) as client:
        client.put(KEY, b"old")
        client.put(KEY, VALUE)
        client.put(OTHER, b"")
        assert client.exists(OTHER)
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / f"{99:016x}.part").write_bytes(b"half")
    with running(folder=tmp_path) as store, Client(store.port) as client:
        assert client.get() == (FORM, VALUE)
        assert client.get(OTHER) == (FORM, b"")
        client.put(KEY, b"newest")
        assert client.get() == (FORM, b"newest")
        assert len(list(tmp_path.glob("*.value"))) == 2
    assert (tmp_path / "notes.txt").read_text() == "not ours"
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize("at", [10, 60, files.HEAD_BYTES, files.HEAD_BYTES + len(VALUE) - 1])
def test_a_file_that_was_altered_is_not_served(tmp_path: Path, at: int) -> None:
    with running(folder=tmp_path) as store, Client(store.port) as client:
        client.put(KEY, VALUE)
        assert client.exists()
    (path,) = tmp_path.glob("*.value")
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with running(folder=tmp_path) as store, Client(store.port) as client:
        assert client.get() is None
        assert not client.exists()


def test_a_file_that_was_cut_or_removed_while_it_serves_is_a_miss(tmp_path: Path) -> None:
    with running(folder=tmp_path) as store, Client(store.port) as client:
        for harm in (lambda path: os.truncate(path, 5_000), Path.unlink):
            client.put(KEY, VALUE)
            assert client.exists()
            (path,) = tmp_path.glob("*.value")
            harm(path)
            assert client.get() is None
            assert store.values.stats() == (0, 0)


def test_a_value_that_the_disk_cannot_read_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Or every client that asks for it would lose its connection, again and again."""

    def fails(out: int, descriptor: int, start: int, length: int) -> int:
        if start > files.HEAD_BYTES:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return sendfile(out, descriptor, start, min(length, 1000))

    sendfile = os.sendfile
    with running(folder=tmp_path) as store, Client(store.port) as client, Client(store.port) as other:
        client.put(KEY, VALUE)
        client.put(OTHER, VALUE)
        assert client.exists(OTHER)
        with monkeypatch.context() as patch:
            patch.setattr(os, "sendfile", fails)
            with pytest.raises(EOFError):
                client.get()
        assert other.get() is None
        assert other.get(OTHER) == (FORM, VALUE)
    assert "a value was removed" in caplog.text
    assert os.strerror(errno.EIO) in caplog.text


def test_a_process_without_descriptors_misses_and_loses_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none_left(path: Path) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with running(folder=tmp_path) as store, Client(store.port) as client:
        client.put(KEY, VALUE)
        assert client.exists()
    with running(folder=tmp_path) as store, Client(store.port) as client:  # which reads the file before it sends it
        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(files, "_opened", none_left)
                assert client.get() is None
            assert client.get() == (FORM, VALUE)
    assert "a value was not read" in caplog.text


def test_a_full_disk_refuses_the_value_and_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written = os.pwrite

    def full(descriptor: int, data: memoryview, at: int) -> int:
        if at > 2 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(descriptor, data, at)

    with running(folder=tmp_path) as store, Client(store.port) as client:
        client.put(KEY, b"old")
        assert client.exists()
        monkeypatch.setattr(os, "pwrite", full)
        client.put(KEY, VALUE * 8)
        assert not client.exists()
        assert not list(tmp_path.glob("*.part"))
        assert "No space left on device" in caplog.text
        client.put(OTHER, VALUE)
        assert client.get(OTHER) == (FORM, VALUE)
        assert store.values.stats() == (1, len(VALUE) + ENTRY_BYTES)


def test_a_real_disk_that_is_full_refuses_and_serves_on(tmp_path: Path) -> None:
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", str(tmp_path)],
            capture_output=True,
            check=False,
        ).returncode
    ):
        pytest.skip("no file system of 4 MiB can be mounted here")
    try:
        with running(folder=tmp_path) as store, Client(store.port) as client:
            client.put(KEY, VALUE)
            client.put(OTHER, VALUE * 8)
            assert not client.exists(OTHER)
            assert client.get() == (FORM, VALUE)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_files_are_their_owners_alone(tmp_path: Path) -> None:
    with running(folder=tmp_path / "values") as store, Client(store.port) as client:
        client.put(KEY, VALUE)
        assert client.exists()
        assert stat.S_IMODE((tmp_path / "values").stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "values").iterdir()} == {0o600}


def test_a_folder_of_another_server_is_refused(tmp_path: Path) -> None:
    with running(folder=tmp_path), pytest.raises(ResourceError, match="another store server's"):
        FileMedium(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="cannot be used"):
        FileMedium(tmp_path / "file")


def test_pipes_links_and_folders_are_neither_waited_for_nor_followed_nor_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, elsewhere = tmp_path / "values", tmp_path / "elsewhere"
    with running(folder=elsewhere) as store, Client(store.port) as client:
        client.put(OTHER, VALUE)
        assert client.exists(OTHER)
    (secret,) = elsewhere.glob("*.value")
    folder.mkdir()
    os.mkfifo(folder / f"{1:016x}.value")
    (folder / f"{2:016x}.value").symlink_to(secret)
    (folder / f"{3:016x}.value").mkdir()
    with running(folder=folder) as store, Client(store.port) as client:
        assert client.get(OTHER) is None
        assert f"a file that is not needed any more stays file={folder}/{3:016x}.value" in caplog.text
        client.put(KEY, VALUE)
        assert client.exists()
        (path,) = (each for each in folder.glob("*.value") if each.is_file())
        path.unlink()
        path.symlink_to(secret)
        assert client.get() is None
    assert secret.stat().st_size == files.HEAD_BYTES + len(VALUE)


def test_a_part_that_cannot_be_removed_does_not_cost_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with running(folder=tmp_path) as store, Client(store.port) as client:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fails)
            patch.setattr(Path, "unlink", fails)
            client.put(KEY, VALUE)
            assert not client.exists()
        client.put(OTHER, VALUE)
        assert client.get(OTHER) == (FORM, VALUE)


def test_a_folder_that_any_user_may_write_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with pytest.raises(ResourceError, match=f"any user may write to --path {tmp_path}.*chmod o-w"):
        FileMedium(tmp_path)
    assert not list(tmp_path.iterdir())
    tmp_path.chmod(0o770)
    FileMedium(tmp_path).close()


# --- the command


def test_a_limit_of_file_sizes_refuses_the_value_and_serves_on(tmp_path: Path) -> None:
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
    with store_process("--path", str(tmp_path), before=limit) as (process, port), Client(port) as client:
        client.put(KEY, VALUE)
        client.put(OTHER, VALUE * 2)
        assert not client.exists(OTHER)
        assert client.get() == (FORM, VALUE)
        assert len(list(tmp_path.glob("*"))) == 2, "one value, and the lock"
        process.terminate()
        assert process.stderr is not None
        assert "File too large" in process.stderr.read()


def test_more_than_the_disk_has_is_said(tmp_path: Path) -> None:
    with store_process("--path", str(tmp_path), "--max-gb", "1000000") as (process, _):
        assert process.stderr is not None
        assert "GiB for values; with --max-gb 1e+06 they are refused" in process.stderr.readline()


def test_of_two_thousand_connections_the_newest_are_served() -> None:
    count, (soft, hard) = 2_000, resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 3 * count:
        pytest.skip(f"{hard} descriptors at most")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * count), hard))
    try:
        with store_process() as (process, port), ExitStack() as opened:
            with Client(port) as first:
                first.put(KEY, VALUE)
                assert first.exists()
            clients = [opened.enter_context(Client(port)) for _ in range(count)]
            assert all(not client.exists(OTHER) for client in clients[-server.CONNECTIONS_MAX // 2 :])
            assert clients[-1].get() == (FORM, VALUE)
            assert clients[0].is_closed
            threads = int(Path(f"/proc/{process.pid}/status").read_text().split("Threads:")[1].split()[0])
            assert threads <= server.CONNECTIONS_MAX + 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_command_ends_with_its_counts_and_keeps_files_across_a_kill(tmp_path: Path) -> None:
    with store_process("--path", str(tmp_path), "--max-gb", "0.01") as (process, port), Client(port) as client:
        client.put(KEY, VALUE)
        assert client.exists()
        client.send(Verb.PUT, OTHER, 100, b"half")
        process.kill()
    with store_process("--path", str(tmp_path)) as (process, port), Client(port) as client:
        assert client.get() == (FORM, VALUE)
        assert not client.exists(OTHER)
        client.send(Verb.PUT, OTHER, 100, b"half")
        process.terminate()
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert "values=1" in process.stderr.read()
    assert len(list(tmp_path.glob("*"))) == 2, "one value, and the lock"


def test_a_port_that_is_taken_is_said(store: Running) -> None:
    command = [sys.executable, "-m", "lmcache_core", "store-server", HOST, str(store.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    assert f"{HOST}:{store.port} cannot be bound" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["x", "70000"], "not a port"), ([HOST, "1", "--max-gb", "0"], "above 0"), ([HOST], "PORT")],
)
def test_what_cannot_be_asked_for_is_said(arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "lmcache_core", "store-server", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode
    assert said in done.stderr
    assert "Traceback" not in done.stderr
