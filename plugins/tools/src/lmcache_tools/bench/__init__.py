"""Measuring an L2 adapter beside what its medium can do, with the same loop around both.

`plan` says which cells are measured, `memory` and `objects` have the bytes, a `lane` moves them (`adapter_lane` through an
adapter, `medium_lane` without one), `traffic` keeps a lane busy and takes the time, `comparison` lets them take turns, and
`report` sums up.
"""
