"""Inner loops of the hot path, each in pure Python; lmcache-native brings compiled ones under the same tests."""
