"""Bugs of peers, one each, as a change of one line of source, and the test that must fail for it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

VARIABLE: Final = "LMCACHE_P2P_PLANTED_BUG"
"""Of a process that runs tests with `-p plugins.p2p.tests.planted_bugs`: the name of a bug."""


class Bug(NamedTuple):
    what: str
    module: str
    right: str
    wrong: str
    test: str
    """File and test, in this folder."""


READER, LESSEE, TRANSFERS, PEER = "reader", "lessee", "transfers", "peer"
OWNER, LEASES, TCP = "owner", "leases", "tcp_server"
HONEST = "test_misbehaving_owners.py::test_one_that_does_everything_right"
CHECK = "check(item.buffer.view, item.key, digest, at_most=item.buffer.at_most).outcome"

BUGS: Final = (
    Bug(
        "no digest is compared",
        TRANSFERS,
        CHECK,
        "Outcome.DONE if (said := inspect(item.buffer.view[:4096])) and said.key == item.key else Outcome.FOREIGN",
        "test_misbehaving_owners.py::test_one_whose_bytes_are_altered",
    ),
    Bug(
        "the header is not compared",
        TRANSFERS,
        CHECK,
        "Outcome.DONE",
        "test_wrong_bytes.py::test_no_fault_brings_a_wrong_byte[shm-4000]",
    ),
    Bug(
        "the key is not compared",
        TRANSFERS,
        CHECK,
        "check(item.buffer.view, getattr(inspect(item.buffer.view[:4096]), 'key', item.key), digest).outcome",
        "test_misbehaving_owners.py::test_one_that_says_it_has_what_it_has_not",
    ),
    Bug(
        "a lease is released before the read has ended",
        READER,
        "live[-1].lease.pins += 1",
        "live[-1].lease.pins += 0",
        "test_routes.py::test_buffers_are_given_back_when_the_channel_has_released_them",
    ),
    Bug("a lease is ended twice", LESSEE, "if lease.pins == 0:", "if lease.pins <= 1:", HONEST),
    Bug(
        "a lease is not ended",
        LESSEE,
        "await lease.peer.ask(END, lease.number, seconds=self._settings.lookup_timeout)",
        "pass",
        HONEST,
    ),
    Bug(
        "a lease is not renewed",
        LESSEE,
        "            await asyncio.sleep(period)",
        "            return",
        "test_misbehaving_owners.py::test_a_lease_is_renewed_as_long_as_it_is_pinned",
    ),
    Bug(
        "the reader does not look at a lease's deadline",
        PEER,
        "self.session == self.peer.session and time.monotonic() < self.ends_at - MARGIN_SECONDS",
        "self.session == self.peer.session",
        "test_misbehaving_owners.py::test_a_lease_that_cannot_be_renewed_ends_the_load",
    ),
    Bug(
        "the owner does not look at a lease's deadline",
        LEASES,
        "if task.deadline <= now",
        "if False",
        "test_owner.py::test_one_that_never_gives_back_loses_its_lease_at_the_deadline",
    ),
    Bug(
        "the owner looks at deadlines once a second",
        LEASES,
        "return min((task.deadline for task in self._tasks.values()), default=math.inf)",
        "return math.inf",
        "test_owner.py::test_the_next_look_at_deadlines_is_at_the_first_of_them",
    ),
    Bug(
        "a lease of a session before is used",
        PEER,
        "self.session == self.peer.session and time",
        "time",
        "test_misbehaving_owners.py::test_a_lease_of_a_session_before_is_not_used",
    ),
    Bug(
        "a second hello keeps the session before",
        LEASES,
        "        self.end_session(key)\n        session = Session",
        "        session = Session",
        "test_owner.py::test_a_second_hello_ends_what_was_before",
    ),
    Bug(
        "a forged secret is accepted",
        TCP,
        "allowed = self._leases.get(secret)",
        "allowed = next(iter(self._leases.values()), None)",
        "test_outsiders.py::test_another_secret_is_answered_no",
    ),
    Bug(
        "a greeting for another start is accepted",
        TCP,
        "if magic != MAGIC or ticket not in self._tickets:",
        "if magic != MAGIC:",
        "test_outsiders.py::test_a_greeting_for_another_start_is_not_answered",
    ),
    Bug(
        "the end of an extent is not looked at",
        TCP,
        "and offset + length <= bounds[place]",
        "and offset < bounds[place]",
        "test_outsiders.py::test_an_extent_outside_of_the_lease_closes_the_connection",
    ),
    Bug(
        "the end of an extent wraps around",
        TCP,
        "and offset + length <= bounds[place]",
        "and (offset + length) % (1 << 64) <= bounds[place]",
        "test_outsiders.py::test_an_extent_outside_of_the_lease_closes_the_connection",
    ),
    Bug(
        "an answer goes on when its lease has ended",
        TCP,
        "and secret in self._leases:",
        "and True:",
        "test_outsiders.py::test_what_is_under_way_stops_with_its_lease",
    ),
    Bug(
        "a buffer is reported before its read has ended",
        TRANSFERS,
        "isinstance(completion, JobDone) and not completion.released",
        "False",
        "test_routes.py::test_buffers_are_given_back_when_the_channel_has_released_them",
    ),
    Bug(
        "the offsets of objects are swapped",
        LEASES,
        "objects = iter(leased)",
        "objects = reversed(leased)",
        "test_owner.py::test_a_lookup_leases_what_is_there",
    ),
    Bug(
        "a member that has left is let in",
        OWNER,
        "            if name is None:",
        "            name = name or 'former'\n            if False:",
        "test_owner.py::test_one_that_has_left_is_out_and_its_leases_end",
    ),
    Bug(
        "the handshake takes any key",
        OWNER,
        'user = key if self._members.name_of(key) is not None else b""',
        "user = key",
        "test_outsiders.py::test_a_handshake_without_a_members_key_does_not_succeed",
    ),
    Bug(
        "a member sees the tasks of others",
        OWNER,
        "task = session.tasks.get(number)",
        "task = self._leases._tasks.get(number)",
        "test_owner.py::test_results_are_not_given_to_another_member_before_its_own",
    ),
    Bug(
        "leases have no limit together",
        LEASES,
        "free = max(0, self._max_bytes - self.leased_bytes)",
        "free = self._max_bytes",
        "test_owner.py::test_all_leases_together_have_a_limit",
    ),
    Bug(
        "a channel that does not read is kept",
        PEER,
        "return not proofs.isdisjoint(outcomes)",
        "return True",
        "test_routes.py::test_one_that_connects_and_does_not_read_is_left_for_the_next",
    ),
    Bug(
        "wrong bytes of a channel are its owner's",
        PEER,
        "if self._has_read else set()",
        "if True else set()",
        "test_routes.py::test_one_that_brings_wrong_bytes_from_the_first_read_on_is_left",
    ),
    Bug(
        "the certificate is not compared",
        "tls",
        "if not hmac.compare_digest(hashlib.sha256(shown).digest(), expected):",
        "if not shown:",
        "test_tls.py::test_another_certificate_than_the_hello_has_named_is_refused",
    ),
)


def plant(bug: Bug) -> None:
    """Import the module with the bug in place of the right one, before anything else does.  Raises AssertionError where its
    source has changed."""
    name = f"lmcache_p2p.{bug.module}"
    assert name not in sys.modules
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text()
    assert source.count(bug.right) == 1, f"{bug.what}: the code has changed"
    module = ModuleType(name)
    module.__file__, module.__package__, module.__spec__ = spec.origin, "lmcache_p2p", spec
    sys.modules[name] = module
    if "inspect(" in bug.wrong:
        source = source.replace("    check,\n", "    check,\n    inspect,\n")
    exec(compile(source.replace(bug.right, bug.wrong), spec.origin, "exec"), module.__dict__)
    setattr(sys.modules["lmcache_p2p"], bug.module, module)


if VARIABLE in os.environ:
    plant(next(bug for bug in BUGS if bug.what == os.environ[VARIABLE]))
