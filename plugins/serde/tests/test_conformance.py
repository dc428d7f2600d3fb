"""Each serde passes every check, with each way it can be set up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from lmcache_devkit import SerdeSuite
from plugins.serde.tests.round_trip import MASTER


class Checks(SerdeSuite):
    way: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return self.way


class TestZstd(Checks):
    offer = "zstd"


class TestZstdSearching(Checks):
    offer = "zstd"
    way: ClassVar[Mapping[str, Any]] = {"level": 3, "element_bytes": 4}


class TestFp8(Checks):
    offer = "fp8"


class TestInt8(Checks):
    offer = "int8"


class TestInt8SmallGroups(Checks):
    offer = "int8"
    way: ClassVar[Mapping[str, Any]] = {"group_size": 5}


class TestInt4(Checks):
    offer = "int4"


class TestInt4SmallGroups(Checks):
    offer = "int4"
    way: ClassVar[Mapping[str, Any]] = {"group_size": 3}


class TestAesGcm(Checks):
    offer = "aesgcm"
    way: ClassVar[Mapping[str, Any]] = {"keys": [{"value": MASTER}]}
