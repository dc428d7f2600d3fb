"""Inner loops of the hot path in pure Python; lmcache-native has compiled implementations of the same interfaces, under the
same tests."""
