"""The machine as the server sees it, so that tests can show it another one."""

from __future__ import annotations

from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True):
    """`root` is where its /proc, /sys and /dev are."""

    root: Path = Path("/")

    def text(self, path: str) -> str:
        """Of a file below the root; empty when it cannot be read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""

    def meminfo(self, name: str) -> int | None:
        """A line of /proc/meminfo: bytes, or pages for those that count pages."""
        for line in self.text("proc/meminfo").splitlines():
            key, _, rest = line.partition(":")
            if key == name:
                words = rest.split()
                return int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
        return None
