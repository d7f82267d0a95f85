"""Istio's sidecar injectors: which there are, which are live, and what their sidecars are.

`injection` says whether a pod should have a sidecar, `rules` whether an injector is live. `watcher`
gathers all facts, injection policies among them, and publishes the result. `probe` asks an injector
again and again: `probe_rules` has its pod and reads the answers, `replica` sends the request. Files
of rules, and `injection`, are pure.
"""
