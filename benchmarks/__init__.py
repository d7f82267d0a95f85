"""Measurements of what istio-aux promises in numbers; README.md says how each is taken."""
