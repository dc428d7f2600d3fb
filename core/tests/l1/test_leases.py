"""Deadlines are found without a look at every lease, and nothing of a lease that ended stays behind."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lmcache_core.l1.leases import Lease, LeaseKind, LeaseState, LeaseTable, Owner, OwnerKind

OWNER = Owner(OwnerKind.WORKER, 1)


def lease(table: LeaseTable, deadline: float | None) -> Lease:
    made = Lease(OWNER, LeaseKind.READ, [], deadline)
    table.add(made)
    return made


def overdue(table: LeaseTable, now: float, limit: int = 1000) -> list[Lease]:
    late, more = table.overdue(now, limit)
    for found in late:
        table.quarantine(found)
    return late + overdue(table, now, limit) if more else late


def test_a_deadline_is_found_within_a_second_and_not_before() -> None:
    table = LeaseTable()
    early, exact, never = lease(table, 9.2), lease(table, 10.0), lease(table, None)
    assert overdue(table, 9.1) == []
    assert overdue(table, 9.9) == []
    assert overdue(table, 10.0) == [early, exact]
    assert overdue(table, 1e9) == []
    assert never.state is LeaseState.ACTIVE


def test_a_renewed_lease_is_not_late_and_a_shortened_one_is() -> None:
    table = LeaseTable()
    longer, shorter, given_one = lease(table, 10.0), lease(table, 1000.0), lease(table, None)
    table.renew(longer, 20.0)
    table.renew(shorter, 11.0)
    table.renew(given_one, 12.0)
    assert overdue(table, 15.0) == [shorter, given_one]
    assert overdue(table, 20.0) == [longer]


def test_many_that_are_due_are_found_a_few_at_a_time() -> None:
    table = LeaseTable()
    leases = [lease(table, 5.0 + number % 3) for number in range(100)]
    late, more = table.overdue(10.0, 30)
    assert (len(late), more) == (30, True)
    for found in late:
        table.quarantine(found)
    assert len(overdue(table, 10.0, 30)) == 70
    assert set(map(id, table.quarantined())) == set(map(id, leases))


def test_renewed_ones_that_are_looked_at_a_few_at_a_time_are_all_kept() -> None:
    table = LeaseTable()
    leases = [lease(table, 5.0) for _ in range(100)]
    for renewed in leases:
        table.renew(renewed, 50.0)
    assert overdue(table, 10.0, 7) == []
    assert len(overdue(table, 50.0, 7)) == 100


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "renew", "end", "expire"]), st.integers(0, 7), st.floats(0, 60)), max_size=60
    )
)
def test_no_history_tells_it_from_a_list(steps: list[tuple[str, int, float]]) -> None:
    table, model, now = LeaseTable(), list[Lease](), 0.0
    for name, number, value in steps:
        if name == "add":
            model.append(lease(table, now + value if number else None))
        elif name == "expire":
            now += value
            late = overdue(table, now, 2)
            assert all(found.deadline is not None and found.deadline <= now for found in late)
            missed = [
                kept
                for kept in model
                if kept.state is LeaseState.ACTIVE and kept.deadline is not None and kept.deadline <= now - 1
            ]
            assert missed == []
        elif number < len(model):
            chosen = model[number]
            if name == "renew" and chosen.state is LeaseState.ACTIVE:
                table.renew(chosen, now + value)
            elif name == "end":
                chosen.state = LeaseState.ENDED
                table.discard(chosen)
                model.remove(chosen)
    assert len(table) == len(model)
    assert {key for _, leases in table.by_owner() for key in leases} == set(map(id, model))
    for left in model:
        left.state = LeaseState.ENDED
        table.discard(left)
    assert (len(table), table.by_owner(), list(table.quarantined())) == (0, [], [])
    assert overdue(table, 1e9) == []
