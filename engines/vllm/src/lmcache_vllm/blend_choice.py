"""Whether a request is to be blended, and how: what the engine is set to and what the request says itself."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as shown
from typing import Any, Final

from lmcache_vllm.settings import PREFIX, Settings, recompute_ratios

logger = logging.getLogger(__name__)

BLEND: Final = f"{PREFIX}blend"
SELECTOR: Final = f"{PREFIX}blend_selector"
RATIOS: Final = f"{PREFIX}blend_recompute_ratios"
_MESSAGE_CHARS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class BlendChoice:
    """Of a request that is to be blended, as far as it can be."""

    selector: str = ""
    ratios: tuple[float, ...] = ()
    is_own: bool = False
    """The request named the selector or the ratios itself: what fails with them is not the engine's fault."""
    asked: bool = False
    """The request named blending; it gets an answer."""
    to_the_end: bool = False
    """Tokens behind the last segment are part of the blend, too: the selector looks at what the question attends to."""
    refused: str = ""
    """Why it is not blended, in a word for counters; empty: it may be."""
    message: str = ""
    """Why not, in a sentence; empty where the word says it all."""


class BlendChoices:
    """Reads what requests say. Never raises: a value that is wrong leaves its request unblended."""

    def __init__(self, settings: Settings, selectors: Mapping[str, bool]) -> None:
        """`selectors`: names that may be chosen, and whether each of them looks at the question."""
        self._settings = settings
        self._selectors = dict(sorted(selectors.items()))
        self._warned = False

    def of(self, params: Any, refused: str = "") -> BlendChoice | None:
        """`params` are kv_transfer_params as they came. `refused`: why this request cannot be blended. None for one that is
        not to be."""
        mode = self._settings.blend
        if mode == "off":
            return None
        given = {key: params[key] for key in (BLEND, SELECTOR, RATIOS) if key in params} if _is_mapping(params) else {}
        wish = given.get(BLEND, mode == "all" or bool(given))
        if wish is False:
            return None
        try:
            if wish is not True:
                raise ValueError(f"'{BLEND}' is {shown(wish)}; it is true or false")
            selector, ratios = self._selector(given), self._ratios(given)
        except ValueError as error:
            message = str(error)[:_MESSAGE_CHARS_MAX]
            # Once: anyone may send many of them. Each is answered, and counted.
            logger.log(logging.DEBUG if self._warned else logging.WARNING, "a request is not blended: %s", message)
            self._warned = True
            return BlendChoice(asked=True, refused="bad_value", message=message)
        is_own = SELECTOR in given or RATIOS in given
        return BlendChoice(selector, ratios, is_own, bool(given), self._selectors[selector], refused)

    def _selector(self, given: Mapping[str, Any]) -> str:
        name = given.get(SELECTOR, self._settings.blend_selector)
        if not isinstance(name, str) or name not in self._selectors:
            raise ValueError(f"'{SELECTOR}' is {shown(name)}; it is one of {', '.join(self._selectors)}")
        return name

    def _ratios(self, given: Mapping[str, Any]) -> tuple[float, ...]:
        if RATIOS not in given:
            return self._settings.blend_recompute_ratios
        found, layers = recompute_ratios(RATIOS, given[RATIOS]), len(self._settings.blend_check_layers)
        if len(found) not in (1, layers):
            raise ValueError(
                f"'{RATIOS}' has {len(found)} shares; it has one, or one for each of {layers} check layers"
            )
        return found


def _is_mapping(params: Any) -> bool:
    return isinstance(params, Mapping)
