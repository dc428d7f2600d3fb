"""Each of these planted bugs is found: those of the cursor and of eviction by their own tests, the
others by the machine of `test_recovery`, which finds nothing without one."""

from __future__ import annotations

import importlib
import inspect
import types
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from libs.fleet.tests import test_cursor
from plugins.coordinator.tests import test_eviction
from tests.fleet.recovery_machine import RecoveryMachine

SETTINGS = settings(
    max_examples=500,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


class Bug(NamedTuple):
    what: str
    module: str
    owner: str
    method: str
    right: str
    wrong: str


CURSOR, PLACEMENTS = "lmcache_fleet.cursor", "lmcache_fleet.placements"
JOURNALS, EVICTION = "lmcache_coordinator.journals", "lmcache_coordinator.eviction"

BUGS = [
    Bug("a gap is taken for nothing", CURSOR, "Cursor", "journal", "if page.first > expected:", "if False:"),
    Bug(
        "a page is applied twice",
        CURSOR,
        "Cursor",
        "journal",
        "return Step(Doing.NOTHING)",
        "return Step(Doing.APPLY)",
    ),
    Bug(
        "a lost page of a snapshot is not missed",
        CURSOR,
        "Cursor",
        "snapshot",
        "or page.page != self._page or is_older",
        "or self._page is None or is_older",
    ),
    Bug(
        "changes during a snapshot are skipped",
        CURSOR,
        "Cursor",
        "snapshot",
        "self.next, self._page = page.begins_at, None",
        "self.next, self._page = page.begins_at + 2, None",
    ),
    Bug(
        "a dead owner's number is used again at once",
        PLACEMENTS,
        "Placements",
        "_bury",
        "self._dead.append((self._passes + _PASSES, generation.owner))",
        "self._unused.append(generation.owner)",
    ),
    Bug(
        "the generation before stays visible",
        PLACEMENTS,
        "Placements",
        "show",
        "self._bury(before)",
        "self._locations[before.owner] = None; self._unused.append(before.owner)",
    ),
    Bug(
        "a server that has left is still found",
        JOURNALS,
        "Journals",
        "_drop",
        "self._placements.drop(generation)",
        "pass",
    ),
    Bug(
        "what is missing of shared L2 is not looked for",
        JOURNALS,
        "Journals",
        "_take_shared",
        "self.needs_listing(backend, reports_are_lost=True)",
        "pass",
    ),
    Bug(
        "an object is taken for evicted when its delete is sent",
        EVICTION,
        "Eviction",
        "_take",
        "self.sent += objects",
        "self.sent += objects\n"
        "        for victim in [victim for each in slices for victim in each.victims]:\n"
        "            self._usage.delete(victim.backend, victim.key.space, [victim.key.chunk_hash])",
    ),
    Bug(
        "a table without quotas evicts everything",
        EVICTION,
        "Eviction",
        "run",
        "if not table.were_set:",
        "if False:",
    ),
    Bug(
        "what is under way is never sent again",
        EVICTION,
        "Eviction",
        "_begin",
        "if self._interval - each.interval >= WAITED_INTERVALS",
        "if False",
    ),
    Bug(
        "a coordinator that leads no more goes on evicting",
        EVICTION,
        "Eviction",
        "commands",
        "if not self._may_evict():",
        "if False:",
    ),
]


def planted(bug: Bug) -> types.FunctionType:
    """The method, with the bug."""
    module = importlib.import_module(bug.module)
    source = inspect.getsource(module)
    owner = f"class {bug.owner}"
    begin = source.index(f"    def {bug.method}(", source.index(owner))
    end = source.find("\n    def ", begin + 1)
    end = len(source) if end == -1 else end
    method = source[begin:end]
    assert method.count(bug.right) == 1, f"{bug.what}: the code has changed"
    copy = types.ModuleType(bug.module)
    copy.__dict__.update(module.__dict__)
    exec(
        compile(source[:begin] + method.replace(bug.right, bug.wrong) + source[end:], bug.module, "exec"), copy.__dict__
    )
    function = getattr(copy.__dict__[bug.owner], bug.method)
    assert isinstance(function, types.FunctionType)
    # It works on the classes that are in use, not on their copies.
    return types.FunctionType(
        function.__code__, module.__dict__, bug.method, function.__defaults__, function.__closure__
    )


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=[bug.what.replace(" ", "-") for bug in BUGS])
def test_a_planted_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getattr(importlib.import_module(bug.module), bug.owner), bug.method, planted(bug))
    with pytest.raises(Exception):  # noqa: B017 - the test's assertion, or one inside
        find(bug)


def find(bug: Bug) -> None:
    match bug.module:
        case "lmcache_fleet.cursor":
            test_cursor.test_an_empty_page_says_that_something_is_missing()
            test_cursor.test_what_is_known_converges_whatever_happens_to_messages()
        case "lmcache_coordinator.eviction":
            test_eviction.test_the_books_change_when_the_delete_comes_back()
            test_eviction.test_nothing_is_evicted_until_a_quota_was_set_once()
            test_eviction.test_a_coordinator_that_no_longer_leads_sends_nothing()
            test_eviction.test_who_takes_a_delete_and_does_not_answer_is_waited_for_and_then_another_one_is_asked()
        case _:
            run_state_machine_as_test(RecoveryMachine, settings=SETTINGS)
