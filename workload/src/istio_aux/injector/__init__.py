"""Istio's sidecar injectors: which there are, which are live, and what their sidecars are.

`injection` says whether a pod should have a sidecar, `rules` whether an injector is live. `watcher`
gathers all facts, injection policies among them, and publishes the result. `probe` asks an injector
again and again by dry runs: `probe_rules` has their pod and reads the answers. Files of rules, and
`injection`, are pure.
"""
