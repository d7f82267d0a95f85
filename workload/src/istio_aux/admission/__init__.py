"""The admission webhook: `webhook` answers reviews, `certificate` follows its TLS files.

The rules are in `core`: `review` and `start`. Connections and limits are in `serving`.
"""
