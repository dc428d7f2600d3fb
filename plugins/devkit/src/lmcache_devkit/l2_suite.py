"""The requirements of an L2 adapter, as tests.  A distribution runs them with a few lines:

    class TestAcme(L2AdapterSuite):
        offer = "acme"

        @pytest.fixture
        def settings(self, tmp_path):
            return {"base_path": str(tmp_path / "kv")}

`offer` is the name of an installed one, or an `Offer` itself.  Requirements of optional behaviour run where the capability is
declared.  Give `media`, `stalled`, `failing` and `small_settings` (l2/fixtures.py), and their requirements run, too.
Of an adapter that is READ_ONLY, `media` puts the objects where it finds them.

Every test works on keys of its own and deletes what it stored, so that the suite may be run against a backend
that is in use.
"""

from __future__ import annotations

from lmcache_core.model.keys import ObjectKey
from lmcache_core.model.results import Outcome
from lmcache_devkit.borrowed_memory import BorrowedMemory, object_key, payload_of
from lmcache_devkit.l2.accounting import Accounting
from lmcache_devkit.l2.any_length import AnyLength
from lmcache_devkit.l2.batches import Batches
from lmcache_devkit.l2.borrows import Borrows
from lmcache_devkit.l2.closing import Closing
from lmcache_devkit.l2.completions import Completions
from lmcache_devkit.l2.damage import Damage
from lmcache_devkit.l2.declared import Declared
from lmcache_devkit.l2.deletion import Deletion
from lmcache_devkit.l2.durability import Durability
from lmcache_devkit.l2.failures import Failures
from lmcache_devkit.l2.listing import Listing
from lmcache_devkit.l2.media import Media
from lmcache_devkit.l2.media_damage import MediaDamage
from lmcache_devkit.l2.names import Names
from lmcache_devkit.l2.pins import Pins
from lmcache_devkit.l2.read_only import ReadOnly
from lmcache_devkit.l2.rig import OBJECT_BYTES, PAYLOAD_BYTES, Rig
from lmcache_devkit.l2.round_trips import RoundTrips
from lmcache_devkit.l2.sharing import Sharing
from lmcache_devkit.l2.stalls import Stalls
from lmcache_devkit.l2_driver import L2Driver

__all__ = ["OBJECT_BYTES", "PAYLOAD_BYTES", "L2AdapterSuite", "Media", "Rig", "counted", "put"]


class L2AdapterSuite(
    Declared, RoundTrips, Batches, Completions, Pins, Deletion, Damage, MediaDamage, Names, Accounting, Listing,
    Durability, Sharing, Borrows, Stalls, Failures, Closing, AnyLength, ReadOnly,
):  # fmt: skip
    """Set `offer` and, where it needs any, `settings`."""


def put(driver: L2Driver, memory: BorrowedMemory, count: int, first: int = 0) -> list[ObjectKey]:
    """Store `count` objects of `object_key` in a backend that is a test's own.  Fails where one is not DONE."""
    keys = [object_key(number) for number in range(first, first + count)]
    buffers = [memory.sealed(key, payload_of(number, PAYLOAD_BYTES)) for number, key in enumerate(keys, first)]
    assert driver.store(*zip(keys, buffers, strict=True)) == (Outcome.DONE,) * count
    return keys


def counted(driver: L2Driver) -> tuple[int, int]:
    """Objects and bytes that are stored, of an adapter that declares USAGE."""
    usage = driver.usage()
    assert usage is not None
    return usage.objects, usage.used_bytes
