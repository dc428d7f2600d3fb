"""What the adapter is measured beside moves the same bytes."""

from __future__ import annotations

import pytest

from benchmarks.bare_s3 import bare_s3
from benchmarks.peer import BenchmarkError
from lmcache_core import HEADER_BYTES
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_tools.bench.lane import Step, Verb
from tests.remote.s3_servers import S3Server


def test_what_it_stores_it_loads_and_takes_away(moto: S3Server) -> None:
    memory = BorrowedMemory()
    keys = [object_key(number) for number in range(5)]
    stored = [memory.sealed(key, payload_of(number, 100_000)) for number, key in enumerate(keys)]
    loaded = [memory.lend(HEADER_BYTES + 100_000) for _ in keys]
    client = moto.client()
    with bare_s3(moto.host, moto.bucket, moto.region, moto.access_key, moto.secret_key, depth=2) as side:
        for verb, buffers in ((Verb.STORE, stored), (Verb.LOAD, loaded)):
            steps = [
                Step(number, verb, key, buffer) for number, (key, buffer) in enumerate(zip(keys, buffers, strict=True))
            ]
            assert side.run(steps).gb_per_second > 0
        assert [buffer.view == kept.view for buffer, kept in zip(loaded, stored, strict=True)] == [True] * 5
        assert client.list_objects_v2(Bucket=moto.bucket, Prefix="bare/")["KeyCount"] == 5
        missing = Step(9, Verb.LOAD, object_key(9), loaded[0])
        with pytest.raises(BenchmarkError, match="404"):
            side.run([missing])
    assert client.list_objects_v2(Bucket=moto.bucket, Prefix="bare/")["KeyCount"] == 0
    client.close()
