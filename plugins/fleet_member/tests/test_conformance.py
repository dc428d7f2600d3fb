"""Conformance of the service, with a coordinator that is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from lmcache_core import HttpRefusal, HttpRequest, HttpRoute, Service, ServiceContext
from lmcache_devkit import HttpRoutesSuite, ServiceSuite, free_port
from lmcache_fleet.messages import proof_of
from lmcache_fleet_member.member import CHALLENGE_CHARACTERS, Member, Proof
from lmcache_fleet_member.settings import MemberSettings


class TestWithoutItsCoordinator(ServiceSuite):
    offer = "fleet_member"

    @pytest.fixture
    def settings(self) -> Mapping[str, Any]:
        return {"urls": [f"http://127.0.0.1:{free_port()}"]}


def member() -> Member:
    return Member(MemberSettings.model_validate({"urls": ["http://127.0.0.1:9"]}), cast(ServiceContext, None))


class TestProof(HttpRoutesSuite):
    offer = "fleet_member"

    @pytest.fixture
    def services(self) -> Mapping[str, Service]:
        return {"fleet_member": member()}

    def test_it_answers_with_the_secret_that_registers(
        self, routes: Sequence[HttpRoute], services: Mapping[str, Service]
    ) -> None:
        challenge = "c" * CHALLENGE_CHARACTERS
        answer = routes[0].answer(HttpRequest({"challenge": challenge}, {}, {}, b"")).body
        asked = services["fleet_member"]
        assert isinstance(asked, Member)
        assert answer == Proof(proof=proof_of(bytes.fromhex(asked._secret), challenge))
        with pytest.raises(HttpRefusal, match="expected 64 characters, got 1"):
            routes[0].answer(HttpRequest({"challenge": "c"}, {}, {}, b""))


class TestProofOfAServerThatDoesNotRegister(HttpRoutesSuite):
    offer = "fleet_member"

    def test_it_is_refused(self, routes: Sequence[HttpRoute]) -> None:
        with pytest.raises(HttpRefusal, match="does not register"):
            routes[0].answer(HttpRequest({"challenge": "c" * CHALLENGE_CHARACTERS}, {}, {}, b""))
