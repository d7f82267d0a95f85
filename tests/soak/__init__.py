"""A million short-lived pods in one process, as events of watches: `python -m soak`."""
