"""`POST /cache/clear`, and its older name."""

from __future__ import annotations

from typing import Any

import pytest

from plugins.admin.tests.conversation import ask, running
from plugins.admin.tests.stand_ins import StandInCache


@pytest.mark.parametrize("path", ["/cache/clear", "/clear-cache"])
@pytest.mark.parametrize("body", [None, {}, {"tier": "l1"}, {"force": False}])
def test_what_has_no_references_is_dropped(path: str, body: Any) -> None:
    with running(cache=StandInCache(cached=3, held=2)) as server:
        first = ask(server, path, "POST", body)
        assert first[:3] == (
            200,
            "application/json",
            {"status": "ok", "cleared": {"tier": "l1", "objects": 3, "objects_left": 2}},
        )
        assert ask(server, path, "POST", body).body["cleared"] == {"tier": "l1", "objects": 0, "objects_left": 2}


def test_by_force_everything_is() -> None:
    with running(cache=StandInCache(cached=3, held=2)) as server:
        answer = ask(server, "/cache/clear", "POST", {"force": True})
        assert answer.body["cleared"] == {"tier": "l1", "objects": 5, "objects_left": 0}


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ({"tier": "l2"}, 422, "field 'tier' is 'l2': input should be 'l1'"),
        ({"force": "yes"}, 422, "field 'force' is 'yes': input should be a valid boolean"),
        ({"forse": True}, 422, "no field is called 'forse'; did you mean 'force'?"),
        (b"nonsense", 400, "the body is not JSON: "),
    ],
)
def test_a_mistake_drops_nothing(body: Any, code: int, says: str) -> None:
    cache = StandInCache()
    with running(cache=cache) as server:
        answer = ask(server, "/cache/clear", "POST", body)
        assert (answer.code, answer.kind) == (code, "application/problem+json")
        assert answer.body["detail"].startswith(says)
        assert ask(server, "/cache/clear").code == 405
    assert (cache.cached, cache.held) == (3, 2)
