"""What a server was asked, recorded, so that it can be looked at, simulated and replayed.

The format is described in `format`; `recorder` and the subscriber write it, `reader` and the command `lmcache trace`
read it.
"""
