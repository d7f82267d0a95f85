"""The workload's controllers on a virtual clock, against a small model of a cluster with faults.

What is real is everything below `serve`: `istio_aux.wiring.Wiring` with its watches, Lease, Events
and both controllers, one event loop for each unit. The model is the API server, nodes, agents and
the controllers of workloads. A seed decides everything, so a seed reproduces a run:
`python -m simulation --seed 7 --trace`.

`unit` has the clock of one unit, `world` that of all; `store`, `kubelet` and `workloads` are the
model, `client` is what the product meets of it. The tests of the workload ask the same `store` over
HTTP. `faults` says what goes wrong, `properties` what must hold all the same,
`play` which faults a violation needs, `breaks` that the properties bite.

`deaths` has a unit die at each request of a run without faults. `exhaustive` visits every state of
a smaller world: the quit of one pod (`onepod`).
"""
