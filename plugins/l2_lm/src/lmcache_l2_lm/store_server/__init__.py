"""`lmcache store-server`: values in memory or in a folder, for clients of the lm:// protocol."""
