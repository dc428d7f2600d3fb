"""`lmcache simulate`: replay a trace through eviction policies, without a server."""
