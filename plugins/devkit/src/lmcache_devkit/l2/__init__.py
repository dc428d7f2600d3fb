"""The requirements of an L2 adapter, one file per concept; `l2_suite.L2AdapterSuite` puts them together."""
