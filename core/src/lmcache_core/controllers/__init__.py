"""Threads that move objects between tiers and free space: `store` writes to L2, `prefetch` loads from there, `eviction` asks
the policy for victims."""
