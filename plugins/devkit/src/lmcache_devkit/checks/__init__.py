"""The requirements of each kind of offer, for an installed one that the environment names; `lmcache plugins check` runs
them."""
