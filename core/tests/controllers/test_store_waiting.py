"""What waits for an adapter goes out in order, and is dropped by the rule, whatever came in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from lmcache_core.controllers.store_queue import DropRule, WaitingStores
from lmcache_core.controllers.store_units import StoreUnit


@dataclass(eq=False)
class Unit:
    batch: int
    depth: int
    order: int
    lease: int = 0


def first_to_go(waiting: list[Unit], rule: DropRule) -> Unit:
    match rule:
        case DropRule.NEWEST:
            return max(waiting, key=lambda unit: (unit.batch, unit.order))
        case DropRule.OLDEST:
            return max(waiting, key=lambda unit: (-unit.batch, unit.order))
        case DropRule.DEEPEST:
            return max(waiting, key=lambda unit: (unit.depth, unit.order))


@given(
    st.sampled_from(list(DropRule)),
    st.lists(
        st.one_of(st.tuples(st.integers(0, 5), st.integers(1, 90)), st.sampled_from(["take", "drop", "withdraw"]))
    ),
)
def test_it_is_a_queue_with_a_rule(rule: DropRule, steps: list[Any]) -> None:
    waiting, model = WaitingStores(rule), list[Unit]()
    orders = batches = 0
    for step in steps:
        match step:
            case (int(depth), int(count)):
                batches += 1
                for place in range(count):
                    orders += 1
                    model.append(Unit(batches, depth + place, orders, lease=batches % 2))
                    waiting.add(cast(StoreUnit, model[-1]))
            case "take" if model:
                assert cast(Unit, waiting.take()) is model.pop(0)
            case "drop" if model:
                gone = first_to_go(model, rule)
                assert cast(Unit, waiting.drop()) is gone
                model.remove(gone)
            case "withdraw" if model:
                lease = model[0].lease
                assert cast(list[Unit], waiting.withdraw(cast(Any, lease))) == [u for u in model if u.lease == lease]
                model = [unit for unit in model if unit.lease != lease]
        assert cast(list[Unit], list(waiting)) == model
    assert len(waiting._victims or ()) <= 2 * (orders + 64), "what is gone is forgotten"
