"""Serve the admission webhook over HTTPS."""
