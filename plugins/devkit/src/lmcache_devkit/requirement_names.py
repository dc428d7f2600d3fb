"""`-k`: requirements by their names, as they are printed or as pytest wants them."""

from __future__ import annotations

import ast
import re
from itertools import groupby
from typing import Final

_CASE: Final = re.compile(r" \((\S+)\)$")
_TOKEN: Final = re.compile(r"[()]|[^\s()]+")
_OPERATORS: Final = ("and", "or", "not", "(", ")")


def expression(text: str) -> str:
    """What pytest takes for `text`: an expression as it is, with words that only blanks separate joined by `_`.

    A requirement's whole name matches that requirement also where it has an "and", an "or" or a "not" in it."""
    words = [" ".join(group) if is_operator else "_".join(group) for is_operator, group in _grouped(text)]
    if _is_expression(words):
        return " ".join(words)
    return "_".join(_CASE.sub(r"[\1]", text.strip()).split())


def _grouped(text: str) -> list[tuple[bool, list[str]]]:
    groups = groupby(_TOKEN.findall(text), key=lambda word: word in _OPERATORS)
    return [(is_operator, list(group)) for is_operator, group in groups]


def _is_expression(words: list[str]) -> bool:
    """Are the operators where operators may be?  Python's grammar for them is pytest's, but for calls."""
    shape = " ".join(word if word.split()[0] in _OPERATORS else "x" for word in words)
    try:
        return not any(isinstance(node, ast.Call) for node in ast.walk(ast.parse(shape, mode="eval")))
    except SyntaxError:
        return False
