"""Whatever is stored, deleted and set aside while a directory is learned, in the end the index is what is on the medium."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from libs.object_files.tests.stored import sealed, store
from lmcache_core import HEADER_BYTES, ObjectKey, Outcome, media_path
from lmcache_devkit.borrowed_memory import BorrowedMemory, adapter_context, object_key
from lmcache_object_files import DirectoryLock, ObjectDirectory, ObjectFiles, ObjectIndex, Recovery, recovery

KEYS = [object_key(number) for number in range(8)]
numbers = st.integers(0, len(KEYS) - 1)
sizes = st.sampled_from([10, 100])


class OvertakenIndex(ObjectIndex):
    """Runs an operation between a walk's look at the files and its entry of them."""

    overtake: Callable[[bytes], None] | None = None
    """Is given the object that was looked at; once."""

    def adopt(self, found: Iterable[tuple[bytes, int]]) -> list[bytes]:
        files = list(found)
        act = self.overtake
        if act is not None and files:
            self.overtake = None
            act(files[0][0])
        return super().adopt(files)


class RecoveryMachine(RuleBasedStateMachine):
    """The model: which objects are there, and how long."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="recovery-"))
        self.there: dict[ObjectKey, int] = {}
        self.step_files = mock.patch.object(recovery, "STEP_FILES", 1)
        self.step_files.start()

    @initialize(before=st.dictionaries(numbers, sizes))
    def open(self, before: dict[int, int]) -> None:
        for number, size in before.items():
            path = self.root / media_path(KEYS[number])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(sealed(KEYS[number], size))
            self.there[KEYS[number]] = size
        context = adapter_context(BorrowedMemory(4096))
        lock = DirectoryLock.take(self.root, context)
        directory = ObjectDirectory(lock, ".tmp", context)
        self.index = OvertakenIndex(None)
        self.files = ObjectFiles(directory, lock, self.index, context, durable=False, keep=True)
        self.foreign = 0
        self.steps = Recovery(directory, self.index, self.count_foreign, context).steps()

    def count_foreign(self, count: int) -> None:
        self.foreign += count

    @rule(count=st.integers(1, 4))
    def go_on(self, count: int) -> None:
        for _ in range(count):
            next(self.steps, None)

    @rule(number=numbers, size=sizes)
    def store(self, number: int, size: int) -> None:
        key = KEYS[number]
        assert store(self.files, key, size) is Outcome.DONE
        self.there[key] = size  # one of another length is damaged, and makes room

    @rule(number=numbers)
    def delete(self, number: int) -> None:
        key = KEYS[number]
        expected = Outcome.DONE if key in self.there else Outcome.MISSING
        assert self.files.delete(key) is expected
        self.there.pop(key, None)

    @rule(number=numbers)
    def damage_and_discard(self, number: int) -> None:
        key = KEYS[number]
        if key in self.there:
            path = self.root / media_path(key)
            path.write_bytes(path.read_bytes()[:-1])
        assert self.files.discard(key, Outcome.DAMAGED)
        self.there.pop(key, None)

    @precondition(lambda self: not self.files.recovered)
    @rule(
        size=sizes, verbs=st.lists(st.sampled_from(["store", "delete", "damage_and_discard"]), min_size=1, max_size=3)
    )
    def overtake(self, size: int, verbs: list[str]) -> None:
        """An operation on the object that the walk is about to enter."""

        def act(object_id: bytes) -> None:
            (number,) = (number for number, key in enumerate(KEYS) if key.object_id == object_id)
            for verb in verbs:
                match verb:
                    case "store":
                        self.store(number, size)
                    case "delete":
                        self.delete(number)
                    case _:
                        self.damage_and_discard(number)

        self.index.overtake = act

    @rule(number=numbers)
    def lookup(self, number: int) -> None:
        overtaken = self.index.overtake is not None
        found = self.files.contains(KEYS[number])
        assert overtaken or found == (KEYS[number] in self.there)

    @rule()
    def listing(self) -> None:
        assert set(self.files.list_keys(None, 100).keys) == set(self.there)

    @invariant()
    def nothing_unknown_is_said(self) -> None:
        if self.files.recovered:
            self.assert_index_is_medium()
        else:
            assert self.files.usage() is None

    def assert_index_is_medium(self) -> None:
        sizes = [HEADER_BYTES + size for size in self.there.values()]
        assert self.files.usage() == (sum(sizes), None, len(sizes))
        assert {key for key in KEYS if key.object_id in self.index} == set(self.there)
        assert sorted(
            path.stat().st_size for path in self.root.rglob("*.kv") if ".damaged" not in path.parts
        ) == sorted(sizes)

    def teardown(self) -> None:
        self.step_files.stop()
        for _ in self.steps:
            pass
        self.index.overtake = None
        self.assert_index_is_medium()
        assert self.foreign == 0
        self.files.give_up()
        shutil.rmtree(self.root)


TestRecovery = RecoveryMachine.TestCase
TestRecovery.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
