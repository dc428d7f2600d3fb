"""Inner loops of the hot path, each in pure Python; lmcache-native brings compiled twins under the same tests."""
