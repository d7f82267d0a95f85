"""Istio's sidecar injectors: which there are, which are live, and what their sidecars are.

`watcher` gathers all facts and publishes the result. `probe` asks an injector again and again, and
`replica` sends the request. `policies` reads what istiods are configured to do. Decisions are in
`core`.
"""
