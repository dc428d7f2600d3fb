"""Whatever happens to messages and processes: at quiet, coordinators know what the servers have."""

from __future__ import annotations

from hypothesis import settings

from tests.fleet.recovery_machine import RecoveryMachine

TestRecovery = RecoveryMachine.TestCase
TestRecovery.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
