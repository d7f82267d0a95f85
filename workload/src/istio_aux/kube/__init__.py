"""Everything that speaks to the API server; what objects mean is decided in `istio_aux.model`.

The process: `clock`.
Credentials and connections: `access` (kubeconfig, service account), `exec_plugin` (credential
plugins), `client` (HTTP), `errors` (and how long to wait after them).
Reading: `objects` decodes answers, `watch` keeps up with a collection.
Requests: `actions` has every path and verb, `exec` and `port_forward` reach into pods, `events` and
`lease` write objects of their own.
"""
