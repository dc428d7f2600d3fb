"""What is recorded, where it goes, and what happens when it cannot be written."""

from __future__ import annotations

import errno
import os
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from lmcache_core import ConfigError, Event, QuotaChanged, Subscriber, WorkerLeft
from lmcache_core.contracts.settings import validate
from lmcache_devkit import SubscriberSuite
from lmcache_observability.trace.format import FRAME_BYTES_MAX
from lmcache_observability.trace.reader import TraceReader
from lmcache_observability.trace.recorder import Recorder
from lmcache_observability.trace.records import (
    Answer,
    Began,
    Closed,
    Ended,
    EventRecord,
    Lookup,
    Lost,
    Retrieved,
    Stored,
)
from lmcache_observability.trace.settings import TraceSettings
from lmcache_observability.trace.trace_subscriber import open_trace
from plugins.observability.tests.server_stand_in import ServerStandIn
from plugins.observability.tests.trace.stand_ins import chain, read, record, request


class TestTraceOfOperations(SubscriberSuite):
    offer = "trace"

    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, Any]:
        return {"output": str(tmp_path / "trace.lct"), "hashes_max": 1000, "size_max_bytes": 100_000}


class TestTraceOfEvents(TestTraceOfOperations):
    @pytest.fixture
    def settings(self, tmp_path: Path) -> dict[str, Any]:
        output = str(tmp_path / "trace.lct")
        return {"level": "events", "output": output, "hashes_max": 1000, "size_max_bytes": 100_000}


def feed(subscriber: Subscriber, events: list[Event]) -> None:
    calls = subscriber.subscriptions()
    for event in events:
        calls[type(event)](event)
    subscriber.batch_done()


def test_operations_are_recorded_in_order(tmp_path: Path) -> None:
    path = record(tmp_path / "t", [*request("a", [1, 2, 3], 0), *request("b", [1, 2, 4], 2)])
    entries = read(path)
    kinds = [type(entry.record) for entry in entries]
    assert kinds == [Began, Lookup, Answer, Stored, Ended, Lookup, Answer, Retrieved, Stored, Ended, Closed]
    assert [b"".join(entry.hashes) for entry in entries if entry.hashes] == [chain([1, 2, 3]), chain([1, 2, 4])]
    answer = entries[6].record
    assert isinstance(answer, Answer)
    assert (answer.request, answer.requested, answer.hits) == ("b", 3, 2)


def test_all_events_are_recorded_and_read_as_operations(tmp_path: Path) -> None:
    events = [*request("a", [1, 2], 1, salt="tenant"), WorkerLeft(instance_id=3, model_name="m", reason="died")]
    events.append(QuotaChanged(cache_salt="tenant", limit_bytes=5))
    path = record(tmp_path / "t", events, level="events")
    kinds = [type(entry.record) for entry in read(path)]
    assert kinds == [Began, Lookup, Answer, Retrieved, Stored, Ended, EventRecord, EventRecord, Closed]
    assert b"tenant" not in path.read_bytes()
    assert b"died" in path.read_bytes()


def test_salts_are_digests_unless_they_may_be_plain(tmp_path: Path) -> None:
    events = request("a", [1, 2], 1, salt="tenant-secret")
    assert b"tenant-secret" not in record(tmp_path / "hashed", events).read_bytes()
    assert b"tenant-secret" in record(tmp_path / "plain", events, salts="plain").read_bytes()


def test_a_prefix_that_comes_again_costs_little(tmp_path: Path) -> None:
    prompt = list(range(200))
    once = record(tmp_path / "once", request("a", prompt, 0)).stat().st_size
    often = record(tmp_path / "often", [e for n in range(20) for e in request(f"r{n}", prompt, 200)]).stat().st_size
    assert once > 200 * 32
    assert often - once < 20 * 200


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "t.lct").write_text("foreign")
    first, second = (Recorder(tmp_path / "t.lct", 10_000) for _ in range(2))
    for recorder in (first, second):
        recorder.add(Ended(1.0, "r"))
        recorder.close()
        recorder.close()
        assert recorder.path.parent == tmp_path
        assert recorder.path.suffix == ".lct"
        assert recorder.path.stat().st_mode & 0o777 == 0o600
        assert [entry.record for entry in read(recorder.path)] == [Ended(1.0, "r")]
    assert first.path != second.path
    assert (tmp_path / "t.lct").read_text() == "foreign"


def test_a_full_disk_costs_records_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(tmp_path / "t", 1 << 20)
    real_write, calls = os.write, count()

    def full(fd: int, data: memoryview) -> int:
        if next(calls) % 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(fd, data[:5])

    def add(*names: str) -> None:
        for name in names:
            recorder.add(Ended(1.0, name))
        recorder.flush()

    add("a")
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        add("b", "c", "d")
        add("e")
    add("f")
    recorder.close()
    records = [entry.record for entry in read(recorder.path)]
    assert [each.request for each in records if isinstance(each, Ended)] == ["a", "f"]
    assert [each.records for each in records if isinstance(each, Lost)] == [4]
    assert recorder.lost_records == 4


def test_prompts_behind_lost_records_are_recorded_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    subscriber = open_trace(TraceSettings.model_validate({"output": tmp_path / "t"}))
    subscriber.begin(ServerStandIn())
    feed(subscriber, request("a", [7, 8], 0))
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        feed(subscriber, request("b", [1, 2, 3], 0))
    feed(subscriber, [*request("c", [1, 2, 3, 4], 0), *request("d", [1, 2], 0)])
    subscriber.close()
    prompts = [b"".join(entry.hashes) for entry in read(tmp_path / "t") if entry.hashes]
    assert prompts == [chain([7, 8]), chain([1, 2, 3, 4]), chain([1, 2])]


def test_what_cannot_be_encoded_or_read_again_is_left_out(tmp_path: Path) -> None:
    class Hostile(Event, frozen=True):
        said: Any

    events: list[Event] = [*request("a", [1], 0), Hostile(said=1 << 80), *request("b", [1, 2], 0)]
    events += [Hostile(said="x" * FRAME_BYTES_MAX), *request("c", [1, 2], 0), Hostile(said="x" * (13 << 20))]
    entries = read(record(tmp_path / "t", events, level="events"))
    prompts = [b"".join(entry.hashes) for entry in entries if entry.hashes]
    assert prompts == [chain([1]), chain([1, 2]), chain([1, 2])]
    assert [entry.record.records for entry in entries if isinstance(entry.record, Lost)] == [1, 1]
    assert isinstance(entries[-1].record, Closed)


def test_a_recording_has_a_largest_size(tmp_path: Path) -> None:
    path = record(tmp_path / "t", [e for n in range(500) for e in request(f"r{n}", [n], 0)], size_max_bytes=5000)
    assert path.stat().st_size <= 5000
    recorder = Recorder(tmp_path / "u", 5000)
    for number in range(500):
        recorder.add(Ended(1.0, f"request-{number}"))
        recorder.flush()
    recorder.close()
    assert 4000 < recorder.path.stat().st_size <= 5000
    assert recorder.lost_records + len(read(recorder.path)) == 500
    assert TraceReader(str(recorder.path)).torn_bytes > 0  # before it is read


@pytest.mark.parametrize("given", [{}, {"output": ""}, {"output": "/"}])
def test_a_recording_needs_a_file(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--trace-output"):
        validate(TraceSettings, given, "--trace-level")


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--trace-output .*nowhere.*No such file"):
        record(tmp_path / "nowhere" / "t", [])
