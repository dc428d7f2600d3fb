"""Both forms of traces, and what is said about files that are neither."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from lmcache_core import ConfigError, ResourceError
from lmcache_policies.simulate.trace_file import read_trace

LINES = [
    {"timestamp": 2000, "input_length": 900, "output_length": 5, "hash_ids": [7, "a"]},
    {"timestamp": 500.5, "hash_ids": []},
    {"timestamp": 2000, "hash_ids": [7], "salt": "tenant"},
]


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def as_lines(*requests: object) -> str:
    return "".join(json.dumps(request) + "\n" for request in requests)


def test_requests_come_in_order_of_time(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "t", as_lines(*LINES)))
    assert list(trace.starts) == [0, 0, 2, 3]
    assert list(trace.seconds) == [0.5005, 2.0, 2.0]
    assert trace.longest_request() == 2


def test_one_id_under_two_salts_is_two_blocks(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "t", as_lines(*LINES)))
    assert (list(trace.blocks), trace.distinct) == ([0, 1, 2], 3)
    assert [trace.salts[number] for number in trace.salt_of] == ["", "", "tenant"]


def test_integers_and_strings_are_not_the_same(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path / "t", as_lines({"timestamp": 0, "hash_ids": [1, "1"]}))).distinct == 2


def test_one_block_per_line(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "t", "apple\n\n 17 \napple\n"))
    assert (list(trace.blocks), trace.requests, trace.distinct) == ([0, 1, 0], 3, 2)
    assert list(trace.seconds) == [0, 1, 2]


@pytest.mark.parametrize("text", ["1\n2\n1\n", as_lines(*LINES)])
def test_gzip_is_recognized_by_its_first_bytes(tmp_path: Path, text: str) -> None:
    (tmp_path / "packed").write_bytes(gzip.compress(text.encode()))
    packed, plain = read_trace(str(tmp_path / "packed")), read_trace(written(tmp_path / "plain", text))
    assert (packed.form, packed.blocks, list(packed.starts)) == (plain.form, plain.blocks, list(plain.starts))


@pytest.mark.parametrize("text", ["1\n2\n1\n", as_lines(*LINES)])
def test_the_first_requests_only(tmp_path: Path, text: str) -> None:
    assert read_trace(written(tmp_path / "t", text), max_requests=2).requests == 2


def test_long_files_are_read_in_batches(tmp_path: Path) -> None:
    count = 400_000  # 2.6 MB, read by the megabyte
    trace = read_trace(written(tmp_path / "t", "".join(f"{n % 1000}\n" for n in range(count))))
    assert (trace.requests, trace.distinct) == (count, 1000)
    text = "".join(f"{n}\n" for n in range(count)) + "two words\n"
    with pytest.raises(ConfigError, match=f":{count + 1}: expected one integer or word, got 'two words'"):
        read_trace(written(tmp_path / "t", text))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "not an object"),
        ('{"hash_ids": [1]}', "'timestamp' is missing"),
        ('{"timestamp": true, "hash_ids": [1]}', "'timestamp' is not a number"),
        ('{"timestamp": NaN, "hash_ids": [1]}', "'timestamp' is not a number"),
        ('{"timestamp": 1}', "'hash_ids' is missing"),
        ('{"timestamp": 1, "hash_ids": 3}', "'hash_ids' is not a list"),
        ('{"timestamp": 1, "hash_ids": [1.5]}', "neither an integer nor a string"),
        ('{"timestamp": 1, "hash_ids": [true]}', "neither an integer nor a string"),
        ('{"timestamp": 1, "hash_ids": [4, 4]}', "names a block twice"),
        ('{"timestamp": 1, "hash_ids": [4], "salt": 3}', "'salt' is not a string"),
    ],
)
def test_a_bad_request_is_named_by_file_and_line(tmp_path: Path, line: str, said: str) -> None:
    path = written(tmp_path / "t", as_lines(*LINES) + "\n" + line + "\n")
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}:5: ")
    assert said in str(caught.value)
    assert 'expected {"timestamp": milliseconds, "hash_ids": [ids of blocks]}' in str(caught.value)


@pytest.mark.parametrize("line", ["1,2", "one two"])
def test_a_bad_block_is_named_by_file_and_line(tmp_path: Path, line: str) -> None:
    path = written(tmp_path / "t", f"1\n\n{line}\n")
    with pytest.raises(ConfigError, match=f"t:3: expected one integer or word, got '{line}'"):
        read_trace(path)


def test_the_form_can_be_forced(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path / "t", '{"a":1}\n'), "blocks").distinct == 1
    with pytest.raises(ConfigError, match="t:1: not an object: '17'"):
        read_trace(written(tmp_path / "t", "17\n"), "requests")


def test_files_that_are_not_traces(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="nowhere cannot be read: No such file"):
        read_trace(str(tmp_path / "nowhere"))
    for empty in ["\n \n", '{"timestamp": 0, "hash_ids": []}\n']:
        with pytest.raises(ConfigError, match="names no block; expected one request or one block per line"):
            read_trace(written(tmp_path / "t", empty))
    (tmp_path / "binary").write_bytes(b"PAR1\0\0\0")
    with pytest.raises(ConfigError, match="is not text"):
        read_trace(str(tmp_path / "binary"))
    (tmp_path / "cut").write_bytes(gzip.compress(b"1\n" * 10_000)[:-9])
    with pytest.raises(ResourceError, match="cut cannot be read"):
        read_trace(str(tmp_path / "cut"))


LOOKUPS = [
    {"timestamp": 1700000002.5, "request_id": "b", "model_name": "m", "chunk_hashes": ["0x1", "0x2"], "seq_len": 700},
    {"timestamp": 1700000000.0, "request_id": "a", "model_name": "m", "chunk_hashes": ["0x1"], "cache_salt": "tenant"},
    {"timestamp": 1700000003.0, "request_id": "c", "model_name": "n", "chunk_hashes": ["0x1"]},
    {"timestamp": 1700000004.0, "request_id": "d", "model_name": "m", "chunk_hashes": ["0x1", "0x3"], "world_size": 2},
    {"timestamp": 1700000005.0, "request_id": "e", "model_name": "m", "chunk_hashes": ["0x1", "0x3"], "world_size": 1},
]


def test_a_log_of_lookups_is_recognized_by_its_first_line(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "log", as_lines(*LOOKUPS)))
    assert trace.form == "lookups"
    assert list(trace.starts) == [0, 1, 3, 4, 6, 8]
    assert trace.seconds[1] - trace.seconds[0] == 2.5
    assert [trace.salts[number] for number in trace.salt_of] == ["tenant", "", "", "", ""]


def test_chunks_of_another_model_salt_or_size_are_others(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path / "log", as_lines(*LOOKUPS)))
    first, second, other_model, other_size, again = (
        list(trace.blocks[trace.starts[r] : trace.starts[r + 1]]) for r in range(trace.requests)
    )
    assert again[0] == second[0]
    assert len({first[0], second[0], other_model[0], other_size[0]}) == 4
    assert trace.distinct == 7


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ({"timestamp": 1.0, "chunk_hashes": ["0x1", "0x1"]}, "twice"),
        ({"timestamp": 1.0, "chunk_hashes": "0x1"}, "not a list"),
        ({"chunk_hashes": ["0x1"]}, "missing"),
        ({"timestamp": 1.0, "chunk_hashes": ["0x1"], "model_name": 5}, "model_name"),
        ({"timestamp": 1.0, "chunk_hashes": ["0x1"], "cache_salt": 5}, "cache_salt"),
    ],
)
def test_a_wrong_lookup_is_named(line: object, what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=what) as error:
        read_trace(written(tmp_path / "log", as_lines(LOOKUPS[0], line)), "lookups")
    assert ":2:" in str(error.value)
    assert "chunk_hashes" in str(error.value)
