from __future__ import annotations

import subprocess
import sys

import lmcache_core


def test_every_public_name_can_be_imported() -> None:
    assert len(lmcache_core.__all__) > 100
    for name in lmcache_core.__all__:
        assert getattr(lmcache_core, name) is not None


def test_the_import_loads_no_library() -> None:
    heavy = "{'torch', 'opentelemetry', 'zmq', 'litestar', 'pydantic'}"
    code = f"import sys, lmcache_core; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
