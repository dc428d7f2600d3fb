"""What L2 adapters of network backends share: what is known of the objects there, and how much there is.

known = KnownObjects(context.clock, entries_max=1_000_000, present_seconds=60, absent_seconds=1)
usage_counter = UsageCounter()

if (sight := known.look(key)) is None:                 # unknown: ask the backend
    size = await client.size_of(object_name(prefix, key))
    if known.look(key) is None:                        # a store or a delete that has ended meanwhile knows better
        known.absent(key) if size is None else known.present(key, size)

with usage_counter.changing(key.object_id):
    await client.put(object_name(prefix, key), data)
    usage_counter.stored(key.object_id, len(data))

with usage_counter.counting() as count:                        # at the start, and from time to time where others change it
    async for name, size in client.list(prefix):
        if (object_id := object_id_of(name)) is not None:
            count.saw(object_id, size)
    count.finish()

if settings.owns:                                      # in `started`; `settings` are SharedSettings
    ownership = Ownership(records, instance_id=..., boot_id=..., shared=settings.shared, clock=context.clock,
                          lease_seconds=settings.owner_lease_seconds, conditional=True, place="s3: bucket 'kv'")
    await ownership.take()
    keeper = asyncio.create_task(ownership.keep())     # in `stopped`: cancel it, then `give_up`
elif settings.shared:
    await admit_guest(records, clock=context.clock)

usage_counter.usage(capacity if ownership.held else None)      # core evicts only where there is a capacity
"""

from lmcache_object_remote.known_objects import ABSENT, KnownObjects, Sight
from lmcache_object_remote.names import object_id_of, object_name
from lmcache_object_remote.other_versions import OtherVersions
from lmcache_object_remote.owner_record import OwnerRecord
from lmcache_object_remote.ownership import LEASE_SECONDS, OWNER_NAME, OwnerRecords, Ownership, admit_guest
from lmcache_object_remote.process_mark import ProcessMark
from lmcache_object_remote.second_look import SecondLook
from lmcache_object_remote.shared_settings import SharedSettings
from lmcache_object_remote.usage_counter import Count, UsageCounter

__version__ = "0.1.0"

__all__ = [
    "ABSENT",
    "LEASE_SECONDS",
    "OWNER_NAME",
    "Count",
    "KnownObjects",
    "OtherVersions",
    "OwnerRecord",
    "OwnerRecords",
    "Ownership",
    "ProcessMark",
    "SecondLook",
    "SharedSettings",
    "Sight",
    "UsageCounter",
    "admit_guest",
    "object_id_of",
    "object_name",
]
