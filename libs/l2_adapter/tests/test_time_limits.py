"""Which of two limits is to be met first."""

from __future__ import annotations

from inspect import signature

from lmcache_core.app.setting_groups import L2Settings
from lmcache_l2_adapter import AsyncL2Adapter
from lmcache_l2_adapter.loop_executor import CANCEL_GRACE_SECONDS


def test_an_operation_may_hang_less_long_than_a_job() -> None:
    default = signature(AsyncL2Adapter).parameters["operation_timeout_seconds"].default
    assert default + CANCEL_GRACE_SECONDS < L2Settings.model_fields["l2_timeout_seconds"].default
