"""What plugins implement, and what they are handed.  Plugin authors import these names from `lmcache_core`."""
