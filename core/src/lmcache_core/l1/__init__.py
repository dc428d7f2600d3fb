"""The memory cache: arena, slab slots, index, leases."""
