"""Everything that speaks to the API server. What objects mean is decided in `istio_aux.model`.

`access`, `exec_plugin`: address and credentials. `client`: HTTP; no kinds.
`objects`: decoding.
`errors`: what a request can raise: `KubeError`, decided on by type and code.
`actions`: every path, and every request that is no watch. `watch`: keeps up with a collection.
`lease`, `events`: who leads, and Events. `exec`: to a container. `clock`: the time.

To read an object, write a frozen `Struct`; what tenants may set to `null` needs `| None`. A request
is a function in `actions`. Give a change a precondition: UID and `resourceVersion`. The right goes
into `src/templates/`, and `tests/cluster/` proves it. Only a `patient` client repeats a request.
"""
