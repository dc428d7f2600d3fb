"""Make sure that torch in this environment is a CPU build; if it is not, install it again from an index of CPU builds.

Usage: ENVIRONMENT/bin/python -m scripts.cpu_torch REQUIREMENTS_FILE INDEX_URL

The build that the package index offers on most machines is linked against CUDA libraries, which nothing else here brings
along: importing it fails where they are missing.  So the build is read off torch's version file, without importing it.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from pathlib import Path

from scripts.pip_progress import environment_log, install


def is_cpu_build(site_packages: Path) -> bool:
    """Whether the installed torch was built without CUDA."""
    version_file = (site_packages / "torch" / "version.py").read_text()
    return re.search(r"^cuda\b[^=]*=\s*None", version_file, re.MULTILINE) is not None


def pinned_torch(requirements: Path) -> str:
    """The line of the requirements file that pins torch."""
    (pin,) = [line for line in requirements.read_text().splitlines() if line.startswith("torch==")]
    return pin


def main() -> int:
    requirements, index = Path(sys.argv[1]), sys.argv[2]
    site_packages = Path(sysconfig.get_paths()["platlib"])
    if is_cpu_build(site_packages):
        return 0
    pin = pinned_torch(requirements)
    status = install(
        "CPU build of torch", ["--no-deps", "--force-reinstall", "--index-url", index, pin], environment_log()
    )
    if status == 0 and not is_cpu_build(site_packages):
        print(f"{pin} from {index} is not a CPU build either; name another index with `make TORCH_INDEX=...`")
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
