"""What of an offer is refused when its plugin is loaded, so that neither a listing nor an opening fails later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from core.tests.app.test_cli import Environment, lmcache
from lmcache_core.app.plugins.discovery import Status
from lmcache_core.app.plugins.loading import load_plugins

Install = Callable[..., Path]
SOURCE = """
    from lmcache_core import Offer, hookimpl

    @hookimpl
    def lmcache_{hook}():
        return [Offer("acme", {arguments})]
    """


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("7, 'a:b'", "summary is 7, not one line of text"),
        ("None, 'a:b'", "summary is None, not one line of text"),
        ("'two\\nlines', 'a:b'", r"summary is 'two\nlines', not one line of text"),
        ("'\\x1b[31mred', 'a:b'", r"summary is '\x1b[31mred', not one line of text"),
        ("'', 'a:b'", "summary is '', not one line of text"),
        ("'s', 'a:b', capabilities=7", "capabilities is 7, not a Capability such as Capability.NONE"),
        ("'s', 'a:b', capabilities='DELETE'", "capabilities is 'DELETE', not a Capability such as Capability.NONE"),
        (
            "'s', 'a:b', optional_capabilities=['DURABLE']",
            "optional_capabilities is ['DURABLE'], not a Capability such as Capability.NONE",
        ),
        ("'s', 'a:b', default='no'", "default is 'no', not True or False"),
        ("'s', 'a:b', default=1", "default is 1, not True or False"),
        (
            "'s', 'a:b', default=True",
            "default is True, which is for subscribers, request modules, HTTP routes and services alone; leave it out",
        ),
    ],
)
def test_an_offer_that_others_would_stumble_over_breaks_its_plugin_alone(
    install: Install, child_environment: Environment, arguments: str, says: str
) -> None:
    install("acme", SOURCE.format(hook="l2_adapters", arguments=arguments))
    (row,) = [row for row in load_plugins().rows() if row.candidate.name == "acme"]
    assert row.status is Status.BROKEN
    assert row.error == f"L2 adapter 'acme': {says}"


def test_a_list_of_everything_survives_it(install: Install, child_environment: Environment) -> None:
    install("acme", SOURCE.format(hook="l2_adapters", arguments="'s', 'a:b', capabilities=7"))
    for form in ("--verbose", "--json"):
        done = lmcache(child_environment, "plugins", "list", form)
        assert (done.returncode, done.stderr) == (0, "")
        assert "capabilities is 7" in done.stdout


@pytest.mark.parametrize("hook", ["subscribers", "request_modules"])
def test_subscribers_and_request_modules_may_be_active_by_themselves(install: Install, hook: str) -> None:
    install("acme", SOURCE.format(hook=hook, arguments="'ein Überblick', 'a:b', default=True"))
    (row,) = [row for row in load_plugins().rows() if row.candidate.name == "acme"]
    assert row.status is Status.ACTIVE
