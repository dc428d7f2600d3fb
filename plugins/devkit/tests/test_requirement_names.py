"""`lmcache plugins check -k`: what people write, and what pytest is given."""

from __future__ import annotations

import pytest

from lmcache_devkit.check_reporter import requirement_of
from lmcache_devkit.requirement_names import expression


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("deleting", "deleting"),
        ("deleting twice", "deleting_twice"),
        ("deleting_twice", "deleting_twice"),
        ("found or missing", "found or missing"),
        ("not deleting twice and (found or not pinned)", "not deleting_twice and ( found or not pinned )"),
        ("deleting twice or stored and found", "deleting_twice or stored and found"),
        ("what is not declared does not apply", "what_is_not_declared_does_not_apply"),
        ("a number is one (2)", "a_number_is_one[2]"),
        ("or", "or"),
    ],
)
def test_words_become_what_pytest_takes(text: str, given: str) -> None:
    assert expression(text) == given


@pytest.mark.parametrize(
    "test", ["test_a_store_and_a_load_meet", "test_it_is_not_there", "test_a_limit[3-x_y]", "test_deleting_twice"]
)
def test_a_requirement_is_found_by_the_name_that_is_printed(test: str) -> None:
    expressions = pytest.importorskip("_pytest.mark.expression")
    compiled = expressions.Expression.compile(expression(requirement_of(test)))
    assert compiled.evaluate(lambda word, **_: word in test)
