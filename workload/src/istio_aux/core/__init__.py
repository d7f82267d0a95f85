"""The rules of istio-aux: pure functions over frozen data; no I/O, no log, no clock."""
