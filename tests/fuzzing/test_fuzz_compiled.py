"""Ten minutes of libFuzzer for each compiled reader, and a fault that it has to find."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.fuzzing import corpus, native

SECONDS = 60
COMPILER = native.fuzzing_compiler()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        COMPILER is None, reason="needs clang++ with libFuzzer (Debian: clang-14 and libclang-rt-14-dev)"
    ),
]


def fuzz(program: Path, target: str, folder: Path, seconds: int) -> subprocess.CompletedProcess[str]:
    found = folder / "found"
    found.mkdir()
    options = [f"-max_total_time={seconds}", "-max_len=512", "-timeout=10", f"-artifact_prefix={folder}/"]
    # The highest memory use of a process is inherited from what started it, so that a limit of it would be the test's own.
    options += ["-rss_limit_mb=0", "-malloc_limit_mb=512"]
    command = [str(program), str(found), str(corpus.unpack(target, folder / "begin")), *options]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=seconds + 120, check=False)


@pytest.mark.timeout(SECONDS + 300)
@pytest.mark.parametrize("target", native.TARGETS)
def test_no_input_breaks_a_compiled_reader(target: str, tmp_path: Path) -> None:
    done = fuzz(native.build(target, tmp_path, COMPILER), target, tmp_path, SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]


PLANTED = {
    "prompt_tokens": ("prompt_tokens.h", "< 1 + size)", "< size)"),
    "page_copy": ("page_copy.cpp", "adjacent() && end < per_object", "adjacent() && end <= per_object"),
    "key_index": ("key_index.h", "if (from_home >= from_gap)", "if (from_home > from_gap)"),
}
"""One character or condition, as a slip of the pen could change it: in which file, what, and to what."""


@pytest.mark.parametrize("target", native.TARGETS)
def test_a_planted_fault_is_found(target: str, tmp_path: Path) -> None:
    name, right, wrong = PLANTED[target]
    copy = tmp_path / "native"
    shutil.copytree(native.NATIVE, copy, ignore=shutil.ignore_patterns("build", "tests"))
    source = copy / "src" / "cpp" / name
    text = source.read_text()
    assert text.count(right) == 1, "the code has changed: plant the fault anew"
    source.write_text(text.replace(right, wrong))
    done = fuzz(native.build(target, tmp_path, COMPILER, copy), target, tmp_path, seconds=120)
    assert done.returncode != 0, "the fuzzer did not see it"
