"""Plumbing that L2 adapters share: completion queue, thread pool, job ids."""
