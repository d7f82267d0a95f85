"""Istio's sidecar injectors: which there are, which are live, and what their sidecars are.

`watcher` gathers all facts and publishes the result. `probe` asks an injector again and again,
`replica` sends the request, `native_sidecars` asks for native ones. `policies` reads what istiods
are configured to do, `namespaces` keeps labels. Decisions are in `core`.
"""
