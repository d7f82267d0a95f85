"""Judges pods, installations and clusters for the commands, and returns findings as data. Pure.

`installation` (which installation looks after a pod, and what it does about the pod), `pods` (what
is wrong with a pod), `preflight` (what keeps istio-aux from working), `moving` (what breaks on the
way to native sidecars or to ambient). They compose the rules of `start`, `quit` and `repair`, as
the controllers do, and read nothing.
"""
