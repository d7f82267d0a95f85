"""What nobody should send, sent to the webhook as it is deployed: `python -m fuzz`."""
