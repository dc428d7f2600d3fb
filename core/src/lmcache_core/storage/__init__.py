"""The request path: what a lookup, a store and a read do with L1, as request modules call it.  What is missing in L1 is loaded
by `controllers.prefetch`; bytes and slots are in `l1`."""
