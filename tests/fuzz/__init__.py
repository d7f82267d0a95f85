"""A fuzzer for the webhook as it is deployed: `python -m fuzz`."""
