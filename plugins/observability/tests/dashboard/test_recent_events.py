"""What the dashboard lists as events."""

from __future__ import annotations

from lmcache_core import AdapterHealthChanged, Event, LeasesExpired, SettingChanged, StoresDropped
from lmcache_observability.dashboard.recent_events import AGAIN_SECONDS, KEPT, Happened, RecentEvents


def shown(*events: Event) -> list[Happened]:
    recent = RecentEvents()
    for event in events:
        recent.subscriptions()[type(event)](event)
    return list(recent.latest())


def test_the_newest_is_first() -> None:
    kinds = [
        each.kind for each in shown(AdapterHealthChanged("s3", False, at=1.0), SettingChanged("x", "1", "2", at=2.0))
    ]
    assert kinds == ["SettingChanged", "AdapterHealthChanged"]


def test_a_flood_of_one_thing_is_one_line_that_counts() -> None:
    drops = [StoresDropped("s3", 1, 2**30, "adapter_down", at=float(number)) for number in range(1000)]
    (flood, other) = shown(AdapterHealthChanged("s3", False, at=0.0), *drops)
    assert (flood.kind, flood.times, flood.first, flood.at) == ("StoresDropped", 1000, 0.0, 999.0)
    assert other.text == "s3 does not answer"


def test_the_same_thing_after_a_while_is_shown_again() -> None:
    again = shown(
        *[StoresDropped("s3", 1, 1, "adapter_down", at=at) for at in (0.0, AGAIN_SECONDS + 1, AGAIN_SECONDS + 2)]
    )
    assert [(each.at, each.times) for each in again] == [(AGAIN_SECONDS + 2, 2), (0.0, 1)]


def test_adapters_and_reasons_are_distinguished() -> None:
    assert len(shown(*[StoresDropped(name, 1, 1, why) for name in ("a", "b") for why in ("x", "y")])) == 4


def test_no_more_than_the_last_ones_are_kept() -> None:
    many = [SettingChanged(f"setting-{number}", "1", "2", at=float(number)) for number in range(3 * KEPT)]
    kept = shown(*many)
    assert [each.at for each in kept] == [float(number) for number in range(3 * KEPT - 1, 2 * KEPT - 1, -1)]


def test_expired_lookups_are_not_shown_but_quarantine_is() -> None:
    assert not shown(LeasesExpired(5, 0))
    assert shown(LeasesExpired(5, 1))[0].text == "5 slots dropped, 1 in quarantine"


def test_names_are_shortened() -> None:
    assert len(shown(SettingChanged("x", "a" * 5000, "b"))[0].text) == 300
