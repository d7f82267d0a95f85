"""Lets Job-like pods live on Istio: admission webhook and quit controller."""
