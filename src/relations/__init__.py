"""The charm's relations: `istio` reads where Istio is, `sidecar` serves other charms."""
