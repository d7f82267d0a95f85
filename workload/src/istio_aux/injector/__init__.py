"""Watch what the API server is told about Istio's sidecar injector."""
