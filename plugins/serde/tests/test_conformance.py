"""Each serde keeps every requirement, with each way it can be set up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from lmcache_devkit import SerdeSuite
from plugins.serde.tests.round_trip import MASTER


class Requirements(SerdeSuite):
    way: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return self.way


class TestZstd(Requirements):
    offer = "zstd"


class TestZstdSearching(Requirements):
    offer = "zstd"
    way: ClassVar[Mapping[str, Any]] = {"level": 3, "element_bytes": 4}


class TestFp8(Requirements):
    offer = "fp8"


class TestInt8(Requirements):
    offer = "int8"


class TestInt8SmallGroups(Requirements):
    offer = "int8"
    way: ClassVar[Mapping[str, Any]] = {"group_size": 5}


class TestInt4(Requirements):
    offer = "int4"


class TestInt4SmallGroups(Requirements):
    offer = "int4"
    way: ClassVar[Mapping[str, Any]] = {"group_size": 3}


class TestAesGcm(Requirements):
    offer = "aesgcm"
    way: ClassVar[Mapping[str, Any]] = {"keys": [{"value": MASTER}]}
