"""Find pods that missed their sidecar, and have them made anew where that is allowed."""
