"""What a check leaves in an operator's backend is named: the objects that an adapter must not delete."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from demo.environment import quiet_environment
from demo.server_process import LMCACHE


def test_foreign_objects_that_stay_are_named_and_nothing_else_stays(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    settings = json.dumps({"base_path": str(root)})
    command = [
        str(LMCACHE),
        "plugins",
        "check",
        "fs",
        "--settings",
        settings,
        "-k",
        "own_outcome or altered or changed_places",
    ]
    done = subprocess.run(
        command, env=quiet_environment(), capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    stay = [path.stem for path in root.rglob("*.kv") if ".damaged" not in path.parts]
    assert stay, "fs must not delete what is foreign"
    assert [name for name in stay if name not in done.stdout] == []
