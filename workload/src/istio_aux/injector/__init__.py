"""Istio's sidecar injectors: which there are, which are live, and what their sidecars are.

`injection` says whether a pod should have a sidecar, `rules` whether an injector is live,
`injection_probe` reads what injectors answer. These are pure. `watcher` gathers all facts and
publishes the result, `probe` asks an injector again and again, `replica` sends the request,
`policies` reads what istiods are configured to do.
"""
