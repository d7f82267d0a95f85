"""Everything that speaks to the API server; `README.md` is the map.

What objects mean is decided in `istio_aux.model`.
"""
