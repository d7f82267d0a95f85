"""Lets Job-like pods run on Istio: an admission webhook, and controllers for quit and repair.

`serve` runs one process, `wiring` says which watches and controllers it has, `serving` is the
server of both ports, and `shedding` says which connections are too many. `settings` has all
options, `status` what the status port answers and when the charm is woken, `telemetry` metrics, log
and Events.
"""
