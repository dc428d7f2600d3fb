"""What is on a medium, read without its adapter."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from lmcache_core import HEADER_BYTES, Check, ObjectHeader, Outcome, check, inspect
from tests.durability.numbered_objects import number_of


def in_files(root: Path) -> Counter[int]:
    """The objects of a directory of files.  Nothing else is left in it but its lock: no temporary, and nothing that was set
    aside as damaged."""
    there: Counter[int] = Counter()
    for path in sorted(root.rglob("*")):
        if path.is_dir() or path.name == ".lock":
            continue
        data = path.read_bytes()
        header = inspect(data[:HEADER_BYTES])
        assert not isinstance(header, Check), f"{path.relative_to(root)}: {header}"
        assert check(data, header.key).outcome is Outcome.DONE, f"{path.relative_to(root)} is not whole"
        assert path.name == f"{header.key.object_id.hex()}.kv", f"{path.relative_to(root)} holds {header.key}"
        there[number_of(header.key)] += 1
    return there


def in_slots(*devices: Path) -> Counter[int]:
    """The objects of files that are cut into slots, wherever their header pages are.  A page that is not whole is not an
    object, but behind a whole one is a whole object."""
    there: Counter[int] = Counter()
    for device in devices:
        data = memoryview(device.read_bytes())
        for at in range(0, len(data), HEADER_BYTES):
            header = inspect(data[at : at + HEADER_BYTES])
            if not isinstance(header, ObjectHeader):
                continue
            run = data[at : at + HEADER_BYTES + header.stored_bytes]
            assert check(run, header.key).outcome is Outcome.DONE, (
                f"the object at byte {at} of {device.name} is not whole"
            )
            there[number_of(header.key)] += 1
    return there
